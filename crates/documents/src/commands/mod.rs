//! The commands, one file each, and the command table.

pub mod aggregate;
mod build_info;
mod coll_stats;
mod connection_status;
mod count;
mod create;
mod create_indexes;
mod current_op;
mod db_stats;
mod delete;
mod distinct;
mod drop;
mod drop_database;
mod drop_indexes;
mod explain;
mod find;
mod find_and_modify;
mod forebay;
mod get_cmd_line_opts;
mod get_log;
mod get_more;
mod get_parameter;
mod group_counts;
mod host_info;
pub mod insert;
mod kill_cursors;
mod kill_op;
mod list_collections;
mod list_commands;
mod list_databases;
mod list_indexes;
pub mod output;
mod ping;
pub mod read;
mod rename_collection;
mod server_status;
mod sessions;
mod sources;
mod statements;
mod transactions;
mod update;
mod validate;
mod whats_my_uri;

use crate::dispatch::Spec;

/// All commands, in the order of their names.
pub static COMMANDS: &[&Spec] = &[
    &aggregate::SPEC,
    &build_info::LOWER_CASE,
    &build_info::SPEC,
    &coll_stats::LOWER_CASE,
    &coll_stats::SPEC,
    &connection_status::SPEC,
    &count::SPEC,
    &create::SPEC,
    &create_indexes::SPEC,
    &current_op::SPEC,
    &db_stats::LOWER_CASE,
    &db_stats::SPEC,
    &delete::SPEC,
    &distinct::SPEC,
    &drop::SPEC,
    &drop_database::SPEC,
    &drop_indexes::DELETE,
    &drop_indexes::SPEC,
    &explain::SPEC,
    &find::SPEC,
    &find_and_modify::LOWER_CASE,
    &find_and_modify::SPEC,
    &forebay::BUCKETS,
    &forebay::DEVICES,
    &forebay::PATTERN,
    &forebay::STATS,
    &get_cmd_line_opts::SPEC,
    &get_log::SPEC,
    &get_more::SPEC,
    &get_parameter::SPEC,
    &host_info::SPEC,
    &insert::SPEC,
    &kill_cursors::SPEC,
    &kill_op::SPEC,
    &list_collections::SPEC,
    &list_commands::SPEC,
    &list_databases::SPEC,
    &list_indexes::SPEC,
    &ping::SPEC,
    &rename_collection::SPEC,
    &server_status::SPEC,
    &sessions::END,
    &sessions::KILL,
    &sessions::KILL_ALL,
    &sessions::KILL_BY_PATTERN,
    &sessions::REFRESH,
    &sessions::START,
    &transactions::ABORT,
    &transactions::COMMIT,
    &update::SPEC,
    &validate::SPEC,
    &whats_my_uri::SPEC,
];
