//! Who a client is: users, SCRAM-SHA-256, and the commands of both.

mod prepare;
pub mod sasl;
pub mod scram;
mod user_commands;
mod users;

pub use user_commands::{is_user_command, run as run_user_command};
pub use users::{DEFAULT_DATABASE, add, any, list, remove, user};
