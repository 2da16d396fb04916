//! Sorts and projections until the query crate has them: refused.
#![expect(missing_docs, reason = "replaced by the query crate's own types")]

use bson::{RawDocument, RawDocumentBuf};
use forebay_query::{Code, Error, Limits};

#[derive(Debug, Clone)]
pub enum Sort {}

impl Sort {
    pub fn parse(_: &RawDocument) -> Result<Sort, Error> {
        Err(Error::new(Code::NotImplemented, "sort is not supported"))
    }
    pub fn key(&self, _: &RawDocument) -> Vec<u8> {
        match *self {}
    }
    pub fn fields(&self) -> Vec<(&str, bool)> {
        match *self {}
    }
}

#[derive(Debug, Clone)]
pub enum Projection {}

impl Projection {
    pub fn parse(_: &RawDocument, _: Option<&RawDocument>, _: &Limits) -> Result<Projection, Error> {
        Err(Error::new(Code::NotImplemented, "projections are not supported"))
    }
    pub fn apply(&self, _: &RawDocument) -> Result<RawDocumentBuf, Error> {
        match *self {}
    }
}
