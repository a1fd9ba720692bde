//! The command line, as its users meet it: the real program against a node in memory.
#![allow(clippy::unwrap_used, reason = "helpers outside of test functions fail the test as well")]

mod commands;
mod convert;
mod documents;
mod faults;
mod lctl;
mod model;
mod model_faults;
mod model_records;
mod model_routes;
mod peers;
mod reference;
mod routes;
mod run;
mod schema;
mod session;
mod watched;
