//! Authentication: users, SCRAM-SHA-256, and their commands.

mod guesses;
mod prepare;
pub mod sasl;
pub mod scram;
mod user_commands;
mod users;

pub use guesses::Guesses;
pub use user_commands::{
    Changes, add_first, is_user_command, may_run as may_run_user_command, run as run_user_command,
};
pub use users::{DEFAULT_DATABASE, account, add, any, list, remove, user};
