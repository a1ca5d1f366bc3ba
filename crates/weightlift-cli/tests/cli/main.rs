//! The command as scripts and people call it: its binary, its output, its exit status.

mod bench;
mod common;

mod demo;
mod errors;
mod inspect;
mod load;
mod pipes;
mod signals;
