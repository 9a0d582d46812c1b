//! Downloads as bars and lines on standard error.

use indicatif::{ProgressBar, ProgressStyle};
use mini_infer_hub::{Progress, ProgressEvent};

const KNOWN_LENGTH: &str =
    "{msg} [{bar:30}] {bytes}/{total_bytes} {binary_bytes_per_sec} {eta} left";
const UNKNOWN_LENGTH: &str = "{msg} {spinner} {bytes} {binary_bytes_per_sec}";

/// Shows what happens while a model is fetched; on a terminal, transfers are bars.
#[derive(Debug, Default)]
pub(crate) struct DownloadProgress {
    bar: Option<ProgressBar>,
}

impl DownloadProgress {
    fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => eprintln!("{text}"),
        }
    }
}

impl Progress for DownloadProgress {
    fn report(&mut self, event: ProgressEvent<'_>) {
        match event {
            ProgressEvent::Chosen { file, num_candidates } => {
                self.say(&format!("{file}: chosen from {num_candidates} GGUF files"));
            }
            ProgressEvent::Started { name, total_bytes, done_bytes } => {
                let (bar, template) = match total_bytes {
                    Some(total_bytes) => (ProgressBar::new(total_bytes), KNOWN_LENGTH),
                    None => (ProgressBar::new_spinner(), UNKNOWN_LENGTH),
                };
                let style = ProgressStyle::with_template(template);
                bar.set_style(style.expect("the templates are valid"));
                bar.set_message(name.to_owned());
                bar.set_position(done_bytes);
                // What was here before is no part of the speed.
                bar.reset_eta();
                if bar.is_hidden() {
                    eprintln!("fetching {name}");
                }
                self.bar = Some(bar);
            }
            ProgressEvent::Advanced { done_bytes } => {
                if let Some(bar) = &self.bar {
                    bar.set_position(done_bytes);
                }
            }
            ProgressEvent::Finished { name } => {
                if let Some(bar) = self.bar.take() {
                    bar.finish_and_clear();
                }
                self.say(&format!("{name}: complete and verified"));
            }
            ProgressEvent::Retrying { reason, delay } => {
                self.say(&format!("{reason}; trying again in {} s", delay.as_secs()));
            }
            ProgressEvent::Waiting { name } => {
                self.say(&format!("{name}: another process fetches it, waiting"));
            }
            ProgressEvent::FallingBack { reason } => {
                self.say(&format!("the Hub did not deliver ({reason}); asking the Python index"));
            }
        }
    }
}
