//! The program `queue`: a worker for commands and HTTP addresses, the dashboard, and commands for operators.

mod arguments;
mod commands;
mod connect;
mod failure;
mod output;
mod work;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    commands::run(arguments::Arguments::parse())
}
