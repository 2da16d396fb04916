//! Applying a projection's rules to a document.

use bson::raw::{RawArray, RawBsonRef, RawDocument, RawDocumentBuf};
use forebay_cancel::SharedStop;

use super::{Mode, Projection, ProjectionContext, Rule, Rules};
use crate::element::{
    Element, Writer, array_elements, check_depth_within, elements, get, payload_bytes,
};
use crate::error::{Code, Error};
use crate::expr::{Scope, evaluation, slice_bounds};

/// The application of a projection to one document.
struct Run<'r> {
    mode: Mode,
    stop: &'r SharedStop,
    scope: Scope<'r>,
    position: Option<usize>,
}

pub(super) fn apply(
    projection: &Projection,
    document: &RawDocument,
    context: &ProjectionContext,
) -> Result<RawDocumentBuf, Error> {
    let run = Run {
        mode: projection.mode,
        stop: &projection.limits.stop,
        scope: Scope::new(document, context.now),
        position: context.position,
    };
    let mut writer = Writer::with_capacity(document.as_bytes().len());
    run.fields(&projection.rules, document, &mut writer)?;
    Ok(writer.finish())
}

impl<'r> Run<'r> {
    fn fields(
        &self,
        rules: &'r Rules,
        document: &RawDocument,
        out: &mut Writer,
    ) -> Result<(), Error> {
        for element in elements(document) {
            match (rules.find(element.key), self.mode) {
                (None, Mode::Include) | (Some(Rule::Exclude), _) => {}
                (None, Mode::Exclude | Mode::Add) | (Some(Rule::Include), _) => {
                    out.element(&element)
                }
                // In an inclusion, computed fields follow the fields of the document.
                (Some(Rule::Computed(_)), Mode::Include) => {}
                (Some(rule), _) => self.field(rule, element.key, &element, out)?,
            }
        }
        rules
            .fields
            .iter()
            .try_for_each(|(name, rule)| self.new_field(name, rule, document, out))
    }

    /// Writes a computed field at the end of the result. Skips a field that the document has, because it was already
    /// written in its place. In an inclusion, writes every computed field at the end.
    fn new_field(
        &self,
        name: &str,
        rule: &'r Rule,
        document: &RawDocument,
        out: &mut Writer,
    ) -> Result<(), Error> {
        if let Rule::Computed(_) | Rule::Nested(_) = rule {
            self.stop.check()?;
        }
        match rule {
            Rule::Computed(_) if self.mode == Mode::Include || get(document, name).is_none() => {
                self.computed(rule, name, out)
            }
            Rule::Nested(inner) if inner.has_computed() && get(document, name).is_none() => {
                self.made(inner, name, out)
            }
            _ => Ok(()),
        }
    }

    fn computed(&self, rule: &'r Rule, name: &str, out: &mut Writer) -> Result<(), Error> {
        let Rule::Computed(expression) = rule else {
            return Ok(());
        };
        let scope = self.scope.holding(out.len())?;
        if let Some(value) = expression.evaluate(&scope)?.get() {
            scope.holding(payload_bytes(value))?;
            check_depth_within(value, out.depth())?;
            out.value(name, value);
        }
        Ok(())
    }

    /// Writes a new embedded document of computed fields.
    fn made(&self, rules: &'r Rules, name: &str, out: &mut Writer) -> Result<(), Error> {
        out.begin_document(name);
        self.fields(rules, &RawDocumentBuf::new(), out)?;
        out.end();
        Ok(())
    }

    /// Applies a rule to a field of the document, and writes the result under `name`.
    fn field(
        &self,
        rule: &'r Rule,
        name: &str,
        element: &Element<'_>,
        out: &mut Writer,
    ) -> Result<(), Error> {
        match rule {
            Rule::Nested(inner) => self.nested(inner, name, element, out),
            Rule::Computed(_) => self.computed(rule, name, out),
            Rule::Slice { position, count } => self.slice(name, element, (*position, *count), out),
            Rule::ElemMatch(filter) => {
                let array = element.value().as_array();
                let index = filter.element_index(element.value())?;
                if let Some(found) = array
                    .zip(index)
                    .and_then(|(array, index)| array_elements(array).nth(index))
                {
                    write_single(name, &found, out);
                }
                Ok(())
            }
            Rule::Positional => self.positional(name, element, out),
            Rule::Include | Rule::Exclude => {
                out.element_as(name, element);
                Ok(())
            }
        }
    }

    fn nested(
        &self,
        rules: &'r Rules,
        name: &str,
        element: &Element<'_>,
        out: &mut Writer,
    ) -> Result<(), Error> {
        match element.value() {
            RawBsonRef::Document(inner) => {
                out.begin_document(name);
                self.fields(rules, inner, out)?;
                out.end();
                Ok(())
            }
            RawBsonRef::Array(array) => self.nested_array(rules, name, array, out),
            _ if self.mode == Mode::Exclude => {
                out.element_as(name, element);
                Ok(())
            }
            _ if rules.has_computed() => self.made(rules, name, out),
            _ => Ok(()),
        }
    }

    fn nested_array(
        &self,
        rules: &'r Rules,
        name: &str,
        array: &RawArray,
        out: &mut Writer,
    ) -> Result<(), Error> {
        check_depth_within(RawBsonRef::Null, out.depth())?;
        out.begin_array(name);
        let mut count = 0_usize;
        for (index, element) in array_elements(array).enumerate() {
            self.check_element(index, out)?;
            let before = out.len();
            self.nested(rules, &count.to_string(), &element, out)?;
            count += usize::from(out.len() > before);
        }
        out.end();
        Ok(())
    }

    /// Writes a slice of an array. Other values are copied unchanged.
    fn slice(
        &self,
        name: &str,
        element: &Element<'_>,
        (position, count): (Option<i64>, i64),
        out: &mut Writer,
    ) -> Result<(), Error> {
        let RawBsonRef::Array(array) = element.value() else {
            out.element_as(name, element);
            return Ok(());
        };
        let (start, length) = slice_bounds(array_elements(array).count(), position, count);
        out.begin_array(name);
        for (index, kept) in array_elements(array).skip(start).take(length).enumerate() {
            self.check_element(index, out)?;
            out.element_as(&index.to_string(), &kept);
        }
        out.end();
        Ok(())
    }

    /// Checks the cancellation token before element number `index` of an array is written, and reserves memory for the
    /// result: an index may be longer than the name that the element had. Checks only once in many elements.
    fn check_element(&self, index: usize, out: &Writer) -> Result<(), Error> {
        if evaluation::is_check_due(index) {
            self.stop.check()?;
            self.scope.holding(out.len())?;
        }
        Ok(())
    }

    fn positional(&self, name: &str, element: &Element<'_>, out: &mut Writer) -> Result<(), Error> {
        let RawBsonRef::Array(array) = element.value() else {
            out.element_as(name, element);
            return Ok(());
        };
        match self
            .position
            .and_then(|index| array_elements(array).nth(index))
        {
            Some(found) => {
                write_single(name, &found, out);
                Ok(())
            }
            None => Err(Error::new(
                Code::Location51246,
                "Executor error during find command :: caused by :: positional operator '.$' couldn't find a matching element in the array",
            )),
        }
    }
}

fn write_single(name: &str, element: &Element<'_>, out: &mut Writer) {
    out.begin_array(name);
    out.element_as("0", element);
    out.end();
}
