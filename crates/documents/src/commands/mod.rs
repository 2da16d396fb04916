//! The commands: one file each, and the table of all of them.

mod build_info;
mod connection_status;
mod count;
mod create;
mod current_op;
mod drop;
mod drop_database;
mod find;
mod get_cmd_line_opts;
mod get_log;
mod get_more;
mod get_parameter;
mod host_info;
mod insert;
mod kill_cursors;
mod kill_op;
mod list_collections;
mod list_commands;
mod list_databases;
mod ping;
mod read;
mod rename_collection;
mod sessions;
mod transactions;
mod whats_my_uri;

use crate::dispatch::Spec;

/// Every command, by name.
pub static COMMANDS: &[&Spec] = &[
    &transactions::ABORT,
    &build_info::SPEC,
    &build_info::LOWER_CASE,
    &transactions::COMMIT,
    &connection_status::SPEC,
    &count::SPEC,
    &create::SPEC,
    &current_op::SPEC,
    &drop::SPEC,
    &drop_database::SPEC,
    &sessions::END,
    &find::SPEC,
    &get_cmd_line_opts::SPEC,
    &get_log::SPEC,
    &get_more::SPEC,
    &get_parameter::SPEC,
    &host_info::SPEC,
    &insert::SPEC,
    &kill_cursors::SPEC,
    &kill_op::SPEC,
    &sessions::KILL,
    &list_collections::SPEC,
    &list_commands::SPEC,
    &list_databases::SPEC,
    &ping::SPEC,
    &sessions::REFRESH,
    &rename_collection::SPEC,
    &sessions::START,
    &whats_my_uri::SPEC,
];
