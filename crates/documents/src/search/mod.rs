//! String search in the cache of field values.
//!
//! Each collection owns one [`CollectionSearch`], which knows the declared fields, builds their cache in the
//! background, applies each write to it, and translates filters into searches. A caller
//!
//! 1. reports every change, in the order in which writers hold the collection's [`WriteLock`]
//!    ([`CollectionSearch::on_insert_many`], [`on_replace`](CollectionSearch::on_replace),
//!    [`on_delete`](CollectionSearch::on_delete));
//! 2. requests a plan ([`CollectionSearch::plan`], or [`plan_values`](CollectionSearch::plan_values) for `distinct` and
//!    `$group`), which is either a [`SearchPlan`] or the reason why the cache cannot answer ([`NotUsed`]);
//! 3. runs the plan: [`SearchPlan::count`], [`SearchPlan::find`], [`SearchPlan::values`].
//!
//! A plan never changes the result of a query. The filter itself checks the documents that the cache cannot evaluate,
//! and each document that `find` returns was checked against the whole filter when it was read.

pub mod admin;
mod build;
mod collection;
mod element;
mod execute;
mod extract;
mod fields;
mod generation;
mod match_stream;
mod plan;
mod prefetch;
mod report;
mod settings;
mod stats;
#[cfg(test)]
mod tests;
mod translate;

pub use collection::{CacheIndex, CollectionSearch, Prepared, WriteLock};
pub use execute::{Arrays, Values, Wanted};
pub use plan::{NotUsed, PlanOptions, SearchPlan};
pub use report::{ExecutionReport, Tally};
pub use settings::SearchSettings;
pub use stats::{CacheBuild, FieldOverview, IndexState};
