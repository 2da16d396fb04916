//! Methods of DataFusion's traits that return futures, without `async_trait`.
//!
//! A method of `async_trait` has bounds between its lifetimes. For each such method rustc computes again whether all
//! that its future holds may move to another thread. Ours hold states of sessions, and each method took 5 to 9 s to
//! compile. The methods here have the bounds of the traits, and call methods without bounds, for which rustc computes
//! it once.

use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::error::Result;
use datafusion::physical_plan::ExecutionPlan;
use futures_util::future::BoxFuture;

/// Future of the scan of a table.
pub(crate) type Scan<'all> = BoxFuture<'all, Result<Arc<dyn ExecutionPlan>>>;
/// Future of a table; of `None` if no table has the name.
pub(crate) type Table<'all> = BoxFuture<'all, Result<Option<Arc<dyn TableProvider>>>>;

/// `TableProvider::scan`, by a method with the same arguments.
macro_rules! scan {
    ($method:ident) => {
        fn scan<'table, 'session, 'columns, 'filters, 'all>(
            &'table self,
            session: &'session dyn Session,
            columns: Option<&'columns Vec<usize>>,
            filters: &'filters [Expr],
            limit: Option<usize>,
        ) -> crate::boxed::Scan<'all>
        where
            'table: 'all,
            'session: 'all,
            'columns: 'all,
            'filters: 'all,
            Self: 'all,
        {
            self.$method(session, columns, filters, limit)
        }
    };
}

/// `SchemaProvider::table`, by a method with the same argument.
macro_rules! table {
    ($method:ident) => {
        fn table<'schema, 'name, 'all>(&'schema self, name: &'name str) -> crate::boxed::Table<'all>
        where
            'schema: 'all,
            'name: 'all,
            Self: 'all,
        {
            self.$method(name)
        }
    };
}

pub(crate) use {scan, table};
