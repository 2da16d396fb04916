//! Authentication: users, their passwords and roles, and SCRAM-SHA-256.

mod changes;
mod guesses;
mod prepare;
pub mod scram;
pub mod users;

pub use changes::Changes;
pub use guesses::Guesses;
pub use users::{DEFAULT_DATABASE, account, add, any, list, remove, user};
