//! Everything that goes to standard output.

use std::fmt::Display;
use std::io::{self, Write};

/// Prints text that ends its own lines. A reader that has gone away is no reason to stop.
pub fn text(text: impl Display) {
    let mut stdout = io::stdout().lock();
    let _ = write!(stdout, "{text}").and_then(|()| stdout.flush());
}

/// Prints one line. A reader that has gone away is no reason to stop.
pub fn line(text: impl Display) {
    let mut stdout = io::stdout().lock();
    let _ = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
}
