//! The process's memory, as the system counts it.
//!
//! Resident memory goes under the name that Prometheus' clients use; what is anonymous and what
//! was swapped out tell a leak from a mapped model file. Read from `/proc` at scrape time; on
//! other systems there is nothing to read.

use crate::metric_writer::MetricWriter;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt;
use std::fs;

/// Reads the process's memory at scrape time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessCollector;

/// Fields of `/proc/self/status`, the metrics that they become, and what these tell.
const FIELDS: [(&str, &str, &str); 3] = [
    ("VmRSS", "process_resident_memory_bytes", "Memory of the process that is in RAM"),
    (
        "RssAnon",
        "process_anonymous_memory_bytes",
        "Memory of the process that is in RAM and in no file",
    ),
    ("VmSwap", "process_swap_bytes", "Memory of the process that was swapped out"),
];

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Ok(status) = fs::read_to_string("/proc/self/status") else {
            return Ok(());
        };
        let writer = &mut MetricWriter { encoder: &mut encoder };
        for (field, name, help) in FIELDS {
            if let Some(num_bytes) = bytes(&status, field) {
                writer.gauge(name, help, num_bytes)?;
            }
        }
        Ok(())
    }
}

/// Returns the bytes of a field, which the kernel gives in KiB.
fn bytes(status: &str, field: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_in_bytes() {
        let status = "Name:\tmini\nVmRSS:\t    1024 kB\nRssAnon:\t 8 kB\nVmSwap:\t 0 kB\n";
        assert_eq!(bytes(status, "VmRSS"), Some(1 << 20));
        assert_eq!(bytes(status, "RssAnon"), Some(8192));
        assert_eq!(bytes(status, "VmSwap"), Some(0));
        assert_eq!(bytes(status, "Vm"), None);
        assert_eq!(bytes("VmRSS:\tmany kB\n", "VmRSS"), None);
    }
}
