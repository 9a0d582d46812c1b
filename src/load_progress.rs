//! Loading weights as a bar on standard error, where that is a terminal.

use indicatif::{ProgressBar, ProgressStyle};

const TEMPLATE: &str = "loading [{bar:30}] {bytes}/{total_bytes} {binary_bytes_per_sec} {eta} left";

/// Shows how much of a model is loaded; the bar goes away with this.
#[derive(Debug)]
pub(crate) struct LoadProgress {
    bar: ProgressBar,
}

impl LoadProgress {
    /// Begins with nothing of `total_bytes` loaded.
    pub(crate) fn new(total_bytes: u64) -> Self {
        let style = ProgressStyle::with_template(TEMPLATE).expect("the template is valid");
        Self { bar: ProgressBar::new(total_bytes).with_style(style) }
    }

    /// Shows that `loaded_bytes` are loaded.
    pub(crate) fn report(&mut self, loaded_bytes: u64) {
        self.bar.set_position(loaded_bytes);
    }
}

impl Drop for LoadProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
