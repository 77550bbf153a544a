//! The program `queue`: its worker with real commands and a real HTTP server, its commands for people, and its
//! connections.

#[path = "program/commands.rs"]
mod commands;
#[path = "program/connecting.rs"]
mod connecting;
#[path = "program/http.rs"]
mod http;
#[path = "program/people.rs"]
mod people;
#[path = "program/reporting.rs"]
mod reporting;
#[path = "program/requests.rs"]
mod requests;
#[path = "program/run.rs"]
mod run;
