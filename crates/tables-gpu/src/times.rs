//! Dates, timestamps and durations as C++ of a kernel.
//!
//! They are integers: days, or seconds and shorter units, since 1970. The CPU computes each function of the bounds of
//! its argument, which gives the bounds of the result, and shows that it fails for no value between them. Zones other
//! than UTC, and years before 1 or after 9999, are left to the CPU.

use std::cmp::Ordering;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;

use datafusion::arrow::array::{Array, AsArray, RecordBatch};
use datafusion::arrow::compute::{DatePart, cast, date_part};
use datafusion::arrow::datatypes::{
    DataType, Date32Type, Field, Int32Type, Int64Type, IntervalUnit, Schema, TimeUnit,
};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, CastExpr, Column, Literal};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::scalar::ScalarValue;

use crate::constants::{self, is_constant};
use crate::expression::Code;
use crate::groups::Values;
use crate::packed::array_of;
use crate::reason::Reason;
use crate::value::{Kind, Value};

type Result<T> = std::result::Result<T, Reason>;

/// The days of the years 1 to 9999.
const DAYS: RangeInclusive<i128> = -719_162..=2_932_896;
/// Maximum number of months that are added to a date.
const MONTHS_MAX: i64 = 12 * 4000;
const SECONDS_OF_DAY: i64 = 86_400;
const NANOS_OF_DAY: i128 = 86_400_000_000_000;
/// A Monday: weeks begin there.
const MONDAY: i64 = -3;

/// What times are rounded down to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Multiples of this many units from an origin on. `is_constant` if they are no part of a kernel's shape.
    Units {
        step: i64,
        origin: i64,
        is_constant: bool,
    },
    /// The first days of months, or of quarters or years.
    Months(i64),
}

impl Code<'_, '_> {
    /// Declares the value of an expression that is computed of times; `None` if it is another one.
    pub(crate) fn time(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Option<Result<Value>> {
        if let Some(call) = expr.downcast_ref::<ScalarFunctionExpr>() {
            return match (call.name(), call.args()) {
                // It hides a timestamp from the planner.
                ("instant", [of]) => Some(self.value(of)),
                ("date_part", [part, of]) => Some(self.part(expr, part, of)),
                ("date_trunc" | "date_bin", _) => Some(self.rounded_down(expr)),
                ("interval_length", [of]) => Some(self.length(of)),
                _ => None,
            };
        }
        if let Some(cast) = expr.downcast_ref::<CastExpr>() {
            return self.time_cast(expr, cast);
        }
        self.time_sum(expr, expr.downcast_ref::<BinaryExpr>()?)
    }

    /// Returns what the CPU computes of a number in a column that is the argument `of` of an expression.
    ///
    /// # Errors
    /// If that fails, or is NULL.
    fn at(
        &self,
        expr: &Arc<dyn PhysicalExpr>,
        of: &Arc<dyn PhysicalExpr>,
        number: i128,
    ) -> Result<i128> {
        let number =
            i64::try_from(number).map_err(|_| Reason::new("numbers of more than 64 bits"))?;
        // DataFusion rounds a constant in another way than a column: a time before 1970 towards 0.
        let data_type = self.type_of(of)?;
        let one = array_of(vec![Some(number)], &data_type).map_err(Reason::of)?;
        let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new("number", 0));
        let children = expr.children().into_iter();
        let children = children.map(|child| match Arc::ptr_eq(child, of) {
            true => Arc::clone(&column),
            false => Arc::clone(child),
        });
        let schema = Arc::new(Schema::new(vec![Field::new("number", data_type, true)]));
        let row = RecordBatch::try_new(schema, vec![one]).map_err(Reason::of)?;
        let expr = Arc::clone(expr).with_new_children(children.collect());
        let result = expr.and_then(|expr| expr.evaluate(&row)?.into_array(1));
        let result = result.map_err(Reason::of)?;
        let result = cast(&result, &DataType::Int64).map_err(Reason::of)?;
        match result.is_null(0) {
            true => Err(Reason::new("a time that is out of range")),
            false => Ok(result.as_primitive::<Int64Type>().value(0).into()),
        }
    }

    /// Returns the bounds of an expression that keeps the order of its argument, which has this value.
    ///
    /// # Errors
    /// If the expression fails for one of the argument's bounds.
    fn at_bounds(
        &self,
        expr: &Arc<dyn PhysicalExpr>,
        of: &Arc<dyn PhysicalExpr>,
        value: &Value,
    ) -> Result<(i128, i128)> {
        let (min, max) = (self.at(expr, of, value.min)?, self.at(expr, of, value.max)?);
        match min <= max {
            true => Ok((min, max)),
            false => Err(Reason::new("a time that is out of range")),
        }
    }

    /// Declares a number of at most 64 bits in the narrowest kind for its bounds.
    fn bounded(
        &mut self,
        text: &str,
        (min, max): (i128, i128),
        valid: Option<String>,
    ) -> Result<Value> {
        let kind = Kind::of(min, max).filter(|it| *it <= Kind::Large);
        let kind = kind.ok_or_else(|| Reason::new("a time that is out of range"))?;
        let text = format!("static_cast<{}>({text})", kind.name());
        Ok(Value {
            text: self.declare(kind, &text),
            kind,
            valid,
            min,
            max,
        })
    }

    /// Declares the day of a time, of which a day has this many units.
    ///
    /// # Errors
    /// If its year may be less than 1 or more than 9999.
    fn day(&mut self, value: &Value, units: i64) -> Result<Value> {
        let [min, max] = [value.min, value.max].map(|it| it.div_euclid(units.into()));
        if !DAYS.contains(&min) || !DAYS.contains(&max) {
            return Err(Reason::new("times before the year 1 or after 9999"));
        }
        let text = match units {
            1 => value.text.clone(),
            _ => format!("floor_of({}, {units}ll)", value.text),
        };
        self.bounded(&text, (min, max), value.valid.clone())
    }

    /// Declares a part of a time: `extract`.
    fn part(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        part: &Arc<dyn PhysicalExpr>,
        of: &Arc<dyn PhysicalExpr>,
    ) -> Result<Value> {
        let part = text_of(part)?;
        let data_type = self.data_type(of)?;
        let units = units_of_day(&data_type)?;
        let value = self.value(of)?;
        if part == "epoch" {
            return self.epoch(&value, units);
        }
        let part = DatePart::from_str(&part).map_err(Reason::of)?;
        let (first, last) = (self.at(expr, of, value.min)?, self.at(expr, of, value.max)?);
        let of_day = match part {
            DatePart::Year => Some(("year_of", first, last)),
            DatePart::YearISO => Some(("iso_year_of", first, last)),
            DatePart::Quarter => Some(("quarter_of", 1, 4)),
            DatePart::Month => Some(("month_of", 1, 12)),
            DatePart::Week => Some(("iso_week_of", 1, 53)),
            DatePart::Day => Some(("day_of_month", 1, 31)),
            DatePart::DayOfWeekSunday0 => Some(("weekday_of", 0, 6)),
            DatePart::DayOfWeekMonday1 => Some(("iso_weekday_of", 1, 7)),
            DatePart::DayOfYear => Some(("day_of_year", 1, 366)),
            _ => None,
        };
        if let Some((name, min, max)) = of_day {
            let day = self.day(&value, units)?;
            let text = format!("{name}({})", day.text);
            return self.bounded(&text, (min, max), value.valid);
        }
        // Of a date, all of these are 0.
        let (hour, minute, second) = (units / 24, units / 1_440, units / SECONDS_OF_DAY);
        let rest = |of: i64| format!("rest_of({}, {of}ll)", value.text);
        let (text, max) = match part {
            DatePart::Hour if hour > 0 => (format!("{} / {hour}", rest(units)), 23),
            DatePart::Minute if minute > 0 => (format!("{} / {minute}", rest(hour)), 59),
            DatePart::Second if second > 0 => (format!("{} / {second}", rest(minute)), 59),
            DatePart::Millisecond if second > 0 => (scaled(&rest(minute), second, 1_000), 59_999),
            DatePart::Microsecond if second > 0 => {
                (scaled(&rest(minute), second, 1_000_000), 59_999_999)
            }
            DatePart::Hour
            | DatePart::Minute
            | DatePart::Second
            | DatePart::Millisecond
            | DatePart::Microsecond => ("0".to_owned(), 0),
            other => return Err(Reason::new(format!("the part {other} of a time"))),
        };
        self.bounded(&text, (0, max), value.valid)
    }

    /// Declares the seconds since 1970 as a float.
    fn epoch(&mut self, value: &Value, units: i64) -> Result<Value> {
        let number = self.cast_to_float(value, &DataType::Int64)?;
        let (op, factor) = match units {
            SECONDS_OF_DAY => return Ok(number),
            1 => (Operator::Multiply, SECONDS_OF_DAY as f64),
            _ => (Operator::Divide, (units / SECONDS_OF_DAY) as f64),
        };
        let factor = self.float_literal(factor)?;
        self.float_arithmetic(op, &number, &factor)
    }

    /// Declares a time that is rounded down: `date_trunc` or `date_bin`.
    fn rounded_down(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Result<Value> {
        let (of, step) = self.rounding(expr)?;
        let units = units_of_day(&self.data_type(&of)?)?;
        let value = self.value(&of)?;
        let bounds = self.at_bounds(expr, &of, &value)?;
        let text = match step {
            Step::Units { step: 1, .. } => return Ok(value),
            Step::Units { origin, .. } => {
                let distances = [value.min, value.max].map(|it| it - i128::from(origin));
                if distances.iter().any(|it| i64::try_from(*it).is_err()) {
                    return Err(Reason::new("a time that is out of range"));
                }
                let (step, origin) = self.step_and_origin(step)?;
                let time = value.widened(Kind::Large);
                format!("{time} - rest_of({time} - {origin}, {step})")
            }
            Step::Months(months) => {
                let day = self.day(&value, units)?;
                format!(
                    "static_cast<i64>(first_of_months(months_of({}) / {months} * {months})) * {units}",
                    day.text
                )
            }
        };
        self.bounded(&text, bounds, value.valid)
    }

    /// Returns a step of units and its origin as code.
    fn step_and_origin(&mut self, step: Step) -> Result<(String, String)> {
        let Step::Units {
            step,
            origin,
            is_constant,
        } = step
        else {
            return Err(Reason::new("steps of months"));
        };
        if !is_constant {
            return Ok((format!("{step}ll"), format!("({origin}ll)")));
        }
        let mut constant = |number: i64| {
            let low = 2 * self.draft.uses.constant(number.into())?;
            Ok::<_, Reason>(format!("static_cast<i64>(f.constants[{low}])"))
        };
        Ok((constant(step)?, constant(origin)?))
    }

    /// Returns the argument of a function that rounds times down, and what to.
    ///
    /// # Errors
    /// If the expression is no such function, or one that kernels do not know.
    fn rounding(&self, expr: &Arc<dyn PhysicalExpr>) -> Result<(Arc<dyn PhysicalExpr>, Step)> {
        let call = expr.downcast_ref::<ScalarFunctionExpr>();
        let call = call.ok_or_else(|| Reason::new(format!("{expr} is not rounded")))?;
        let units = |of| units_of_day(&self.data_type(of)?);
        match (call.name(), call.args()) {
            ("date_trunc", [to, of]) => Ok((Arc::clone(of), step_of(&text_of(to)?, units(of)?)?)),
            ("date_bin", [stride, of, others @ ..]) => {
                let units = units(of)?;
                let origin = match others {
                    [] => 0,
                    [origin, ..] => self.origin_in(origin, of)?,
                };
                let (months, days, nanos) = interval_of(stride)?;
                let step = units_of(days, nanos, units)?;
                if months != 0 || step <= 0 {
                    return Err(Reason::new("date_bin by months or by no time"));
                }
                let step = Step::Units {
                    step,
                    origin,
                    is_constant: true,
                };
                Ok((Arc::clone(of), step))
            }
            _ => Err(Reason::new(format!("{expr} is not rounded"))),
        }
    }

    /// Returns a constant time in the units of another one.
    fn origin_in(&self, origin: &Arc<dyn PhysicalExpr>, of: &Arc<dyn PhysicalExpr>) -> Result<i64> {
        if !is_constant(origin) {
            return Err(Reason::new("date_bin with an origin that differs"));
        }
        let own = units_of_day(&self.data_type(origin)?)?;
        let wanted = units_of_day(&self.data_type(of)?)?;
        let number = constants::value(origin).and_then(|it| it.to_array());
        let number = cast(&number.map_err(Reason::of)?, &DataType::Int64).map_err(Reason::of)?;
        let number = number.as_primitive::<Int64Type>();
        let scaled = i128::from(number.value(0)) * i128::from(wanted);
        match number.is_null(0) || scaled % i128::from(own) != 0 {
            true => Err(Reason::new("date_bin with an origin between two units")),
            false => i64::try_from(scaled / i128::from(own)).map_err(Reason::of),
        }
    }

    /// Returns by how much the values of an expression differ at least, as a number and as code; `None` if that is not
    /// known. Those of a join may have been computed otherwise, or be 0 in rows without a match.
    pub(crate) fn step_of_values(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Option<(i64, String)> {
        if self.draft.join_of(expr).is_some() {
            return None;
        }
        match self.rounding(expr).ok()?.1 {
            Step::Units { step: 1, .. } | Step::Months(_) => None,
            units @ Step::Units { step, .. } => Some((step, self.step_and_origin(units).ok()?.0)),
        }
    }

    /// Declares the number of a key that is a time rounded down to months, among those of all rows. Returns it and the
    /// values by number; `None` if the key is another one.
    pub(crate) fn key_of_months(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
    ) -> Option<Result<(String, Values)>> {
        match self.rounding(expr).ok()? {
            (_, Step::Units { .. }) => None,
            (of, Step::Months(months)) => Some(self.numbered_months(expr, &of, months)),
        }
    }

    fn numbered_months(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        of: &Arc<dyn PhysicalExpr>,
        months: i64,
    ) -> Result<(String, Values)> {
        let data_type = self.data_type(of)?;
        let units = units_of_day(&data_type)?;
        let value = self.value(of)?;
        let day = self.day(&value, units)?;
        let (min, max) = self.at_bounds(expr, of, &value)?;
        let [first, last] = [min, max].map(|it| (it / i128::from(units)) as i32);
        let later = |count: i32| Date32Type::add_year_months_opt(first, count * months as i32);
        let days = (0..).map_while(later).take_while(|day| *day <= last);
        let null = value.valid.as_ref().map(|_| None);
        let days = days.map(|day| Some(i64::from(day) * units));
        let values = array_of(null.into_iter().chain(days).collect(), &data_type);
        let first = self.literal(&ScalarValue::Int64(Some(months_of(first)? / months)))?;
        let number = format!(
            "months_of({}) / {months} - static_cast<i32>({})",
            day.text, first.text
        );
        let number = match &value.valid {
            Some(valid) => format!("{valid} ? {number} + 1 : 0"),
            None => number,
        };
        let number = self.declare(Kind::Small, &number);
        Ok((number, Values::Array(values.map_err(Reason::of)?)))
    }

    /// Declares the nanoseconds of a duration, which may be cast to an interval.
    fn length(&mut self, of: &Arc<dyn PhysicalExpr>) -> Result<Value> {
        let is_interval = |it: &&CastExpr| {
            matches!(
                it.cast_type(),
                DataType::Interval(IntervalUnit::MonthDayNano)
            )
        };
        let cast = of.downcast_ref::<CastExpr>().filter(is_interval);
        let of = cast.map_or(of, CastExpr::expr);
        let digits = match self.data_type(of)? {
            DataType::Duration(TimeUnit::Second) => 9,
            DataType::Duration(TimeUnit::Millisecond) => 6,
            DataType::Duration(TimeUnit::Microsecond) => 3,
            DataType::Duration(TimeUnit::Nanosecond) => 0,
            other => return Err(Reason::new(format!("the length of {other}"))),
        };
        let value = self.value(of)?;
        let length = self.rescaled(&value, digits)?;
        // An interval has its nanoseconds in 64 bits.
        match length.kind {
            Kind::Huge => Err(Reason::new("durations of more than 292 years")),
            _ => Ok(length),
        }
    }

    /// Declares a time of another type.
    fn time_cast(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        cast: &CastExpr,
    ) -> Option<Result<Value>> {
        use DataType::{Date32, Duration, Int64, Timestamp};
        let (of, to) = (cast.expr(), cast.cast_type());
        let from = self.type_of(of).ok()?;
        let is_time = match (&from, to) {
            (Timestamp(_, zone), Date32) => is_utc(zone.as_ref()),
            (Date32, Timestamp(_, zone)) => is_utc(zone.as_ref()),
            // A time without a zone becomes one in the zone; all others are UTC already.
            (Timestamp(_, own), Timestamp(_, zone)) => own.is_some() || is_utc(zone.as_ref()),
            (Timestamp(..) | Duration(_), Int64) | (Int64, Timestamp(..) | Duration(_)) => false,
            _ => return None,
        };
        if !is_time {
            let is_number = matches!(from, Int64) || matches!(to, Int64);
            return is_number.then(|| self.value(of));
        }
        Some(self.in_units(expr, of, (&from, to)))
    }

    /// Declares a time in the units of another type.
    fn in_units(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        of: &Arc<dyn PhysicalExpr>,
        (from, to): (&DataType, &DataType),
    ) -> Result<Value> {
        let value = self.value(of)?;
        let bounds = self.at_bounds(expr, of, &value)?;
        let (own, wanted) = (units(from)?, units(to)?);
        if *to == DataType::Date32 {
            return self.day(&value, own);
        }
        let time = value.widened(Kind::Large);
        let text = match own.cmp(&wanted) {
            Ordering::Less => format!("{time} * {}ll", wanted / own),
            Ordering::Equal => return Ok(value),
            // Towards 0.
            Ordering::Greater => format!("{time} / {}ll", own / wanted),
        };
        self.bounded(&text, bounds, value.valid)
    }

    /// Declares a sum or a difference of times; `None` if the expression is another one.
    fn time_sum(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        binary: &BinaryExpr,
    ) -> Option<Result<Value>> {
        use DataType::{Date32, Duration, Interval, Timestamp};
        use Operator::{Minus, Plus};
        let (op, left, right) = (*binary.op(), binary.left(), binary.right());
        let types = (self.type_of(left).ok()?, self.type_of(right).ok()?);
        match (&types.0, op, &types.1) {
            (Date32 | Timestamp(..), Plus | Minus, Interval(_)) => {
                Some(self.shifted(expr, left, (right, op == Minus)))
            }
            (Interval(_), Plus, Date32 | Timestamp(..)) => {
                Some(self.shifted(expr, right, (left, false)))
            }
            (Timestamp(one, _), Minus, Timestamp(other, _))
            | (Timestamp(one, _) | Duration(one), Plus | Minus, Duration(other))
                if one == other =>
            {
                let sides = self
                    .value(left)
                    .and_then(|left| Ok((left, self.value(right)?)));
                Some(
                    sides.and_then(|(left, right)| {
                        self.arithmetic(op, &left, &right, &DataType::Int64)
                    }),
                )
            }
            _ => None,
        }
    }

    /// Declares a time plus or minus a constant interval.
    fn shifted(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        of: &Arc<dyn PhysicalExpr>,
        (interval, is_minus): (&Arc<dyn PhysicalExpr>, bool),
    ) -> Result<Value> {
        let units = units_of_day(&self.data_type(of)?)?;
        let (months, days, nanos) = interval_of(interval)?;
        let sign = if is_minus { -1 } else { 1 };
        let shift = units_of(days, nanos, units)?.checked_mul(sign);
        let shift = shift.ok_or_else(|| Reason::new("an interval that is too long"))?;
        let value = self.value(of)?;
        let (first, last) = (self.at(expr, of, value.min)?, self.at(expr, of, value.max)?);
        let (mut min, mut max) = (first.min(last), first.max(last));
        let mut text = value.widened(Kind::Large);
        if months != 0 {
            if months.abs() > MONTHS_MAX {
                return Err(Reason::new("an interval that is too long"));
            }
            let day = self.day(&value, units)?;
            let months = self.literal(&ScalarValue::Int64(Some(sign * months)))?;
            text = format!(
                "static_cast<i64>(months_later({}, static_cast<i32>({}))) * {units} + rest_of({text}, {units}ll)",
                day.text, months.text
            );
            // The last days of a month become the same day, so that their hours may change places.
            (min, max) = (min - i128::from(units), max + i128::from(units));
        }
        if shift != 0 {
            let shift = self.literal(&ScalarValue::Int64(Some(shift)))?;
            text = format!("{text} + {}", shift.widened(Kind::Large));
        }
        self.bounded(&text, (min, max), value.valid)
    }
}

/// Returns the units of a day in times of a type.
fn units(data_type: &DataType) -> Result<i64> {
    let unit = match data_type {
        DataType::Date32 => return Ok(1),
        DataType::Timestamp(unit, _) => unit,
        other => return Err(Reason::new(format!("{other} is no time"))),
    };
    Ok(SECONDS_OF_DAY
        * match unit {
            TimeUnit::Second => 1,
            TimeUnit::Millisecond => 1_000,
            TimeUnit::Microsecond => 1_000_000,
            TimeUnit::Nanosecond => 1_000_000_000,
        })
}

/// Returns the units of a day in times of a type, whose days begin as those of UTC.
fn units_of_day(data_type: &DataType) -> Result<i64> {
    match data_type {
        DataType::Timestamp(_, zone) if !is_utc(zone.as_ref()) => {
            Err(Reason::new(format!("days and hours of {data_type}")))
        }
        data_type => units(data_type),
    }
}

fn is_utc(zone: Option<&Arc<str>>) -> bool {
    zone.is_none_or(|zone| matches!(&**zone, "UTC" | "+00:00" | "Z"))
}

/// Returns the text of a constant, in lower case.
fn text_of(expr: &Arc<dyn PhysicalExpr>) -> Result<String> {
    let literal = expr.downcast_ref::<Literal>();
    let text = literal.and_then(|it| it.value().try_as_str().flatten());
    text.map(str::to_lowercase)
        .ok_or_else(|| Reason::new(format!("{expr} is no constant text")))
}

/// Returns what a timestamp is rounded down to by the name of `date_trunc`.
fn step_of(name: &str, units: i64) -> Result<Step> {
    let second = (units / SECONDS_OF_DAY).max(1);
    let step = match name {
        "microsecond" => second / 1_000_000,
        "millisecond" => second / 1_000,
        "second" => second,
        "minute" => 60 * second,
        "hour" => 3_600 * second,
        "day" => units,
        "week" => 7 * units,
        "month" => return Ok(Step::Months(1)),
        "quarter" => return Ok(Step::Months(3)),
        "year" => return Ok(Step::Months(12)),
        other => return Err(Reason::new(format!("date_trunc to {other}"))),
    };
    Ok(Step::Units {
        step: step.max(1),
        origin: if name == "week" { MONDAY * units } else { 0 },
        is_constant: false,
    })
}

/// Returns the months, days and nanoseconds of a constant interval.
fn interval_of(expr: &Arc<dyn PhysicalExpr>) -> Result<(i64, i64, i64)> {
    let value = match is_constant(expr) {
        true => constants::value(expr).map_err(Reason::of)?,
        false => return Err(Reason::new(format!("{expr} is no constant interval"))),
    };
    match value {
        ScalarValue::IntervalMonthDayNano(Some(it)) => {
            Ok((it.months.into(), it.days.into(), it.nanoseconds))
        }
        ScalarValue::IntervalYearMonth(Some(months)) => Ok((months.into(), 0, 0)),
        ScalarValue::IntervalDayTime(Some(it)) => {
            let nanos = i64::from(it.milliseconds) * 1_000_000;
            Ok((0, it.days.into(), nanos))
        }
        _ => Err(Reason::new(format!("{expr} is no constant interval"))),
    }
}

/// Returns days and nanoseconds in units, of which a day has this many.
///
/// # Errors
/// If they are between two units, or too many.
fn units_of(days: i64, nanos: i64, units: i64) -> Result<i64> {
    let of_nanos = i128::from(nanos) * i128::from(units);
    if of_nanos % NANOS_OF_DAY != 0 {
        return Err(Reason::new("an interval that is shorter than a unit"));
    }
    let all = i128::from(days) * i128::from(units) + of_nanos / NANOS_OF_DAY;
    i64::try_from(all).map_err(|_| Reason::new("an interval that is too long"))
}

/// Returns the number of months since the year 0, of a day since 1970.
fn months_of(day: i32) -> Result<i64> {
    let day = array_of(vec![Some(day.into())], &DataType::Date32).map_err(Reason::of)?;
    let part = |part| {
        let part = date_part(&day, part).map_err(Reason::of)?;
        Ok::<i64, Reason>(part.as_primitive::<Int32Type>().value(0).into())
    };
    Ok(part(DatePart::Year)? * 12 + part(DatePart::Month)? - 1)
}

/// Returns the code of a number of units, of which a second has `own`, in those of which it has `wanted`.
fn scaled(text: &str, own: i64, wanted: i64) -> String {
    match own >= wanted {
        true => format!("{text} / {}", own / wanted),
        false => format!("{text} * {}", wanted / own),
    }
}
