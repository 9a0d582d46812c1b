//! The log on standard error.

use crate::cli::LogLevel;
use tracing_subscriber::filter::LevelFilter;

/// Starts to log events of `level` and above.
pub(crate) fn start(level: LogLevel) {
    let filter = match level {
        LogLevel::Off => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    tracing_subscriber::fmt().with_max_level(filter).with_writer(std::io::stderr).init();
}
