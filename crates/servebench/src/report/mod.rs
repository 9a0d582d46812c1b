//! Runs for people and for spreadsheets.
//!
//! Each kind of report is one file or folder here that turns runs into text and writes nothing
//! itself. A figure that was not measured shows as a dash, never as zero. Text out of a file of a
//! run is somebody else's: it cannot steer the terminal, break a table, or run in a spreadsheet.

mod caption;
pub mod comparison;
pub mod csv;
mod figures;
pub mod html;
pub mod markdown;
mod number;
pub(crate) mod regression;
mod run_sentences;
mod run_tables;
mod table;
pub mod terminal;
pub(crate) mod tuning;

pub(crate) use figures::{milliseconds, number, percent};
