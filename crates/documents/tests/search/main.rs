//! Searches through the cache of field values answer what the plain scan answers, whatever is written, moved or lost.

mod differential;
mod explain;
mod generate;
mod restart;
mod storm;
mod support;
