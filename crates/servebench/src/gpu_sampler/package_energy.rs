//! Energy of the processor packages, from the counters that Linux shows as powercap zones.
//!
//! A counter counts microjoules and starts again from zero after its range, which at 200 W is
//! some twenty minutes; a thread therefore reads it all the time. Many systems let only the
//! administrator read it. AMD's processors have zones with Intel's name too.

use super::DeviceReading;
use crate::results::GpuSummary;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What the packages are called in results.
const DEVICE_NAME: &str = "CPU package (RAPL)";
/// Time between readings.
const INTERVAL: Duration = Duration::from_millis(200);
/// Shortest interval that counts for the highest power: counters step every millisecond.
const MIN_PEAK_INTERVAL_S: f64 = 0.1;

/// The counter of one package.
#[derive(Debug)]
struct EnergyCounter {
    path: PathBuf,
    /// Where it starts again from zero, in microjoules.
    range: u64,
    last: u64,
}

/// Reads the counters until it is stopped.
#[derive(Debug)]
pub(super) struct PackageSampler {
    readings: Arc<Mutex<Readings>>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What the counters said so far.
#[derive(Clone, Copy, Debug, Default)]
struct Readings {
    num_readings: usize,
    /// Since the first reading.
    seconds: f64,
    joules: f64,
    last_power_w: Option<f64>,
    peak_power_w: Option<f64>,
}

impl EnergyCounter {
    /// Opens the counter of a zone; `None` when it is no package or cannot be read.
    fn open(zone: &Path) -> Option<Self> {
        let name = fs::read_to_string(zone.join("name")).ok()?;
        if !name.starts_with("package") {
            return None;
        }
        let path = zone.join("energy_uj");
        let range = read_number(&zone.join("max_energy_range_uj"))?;
        let last = read_number(&path)?;
        Some(Self { path, range, last })
    }

    /// Returns the joules since the last call; none when the counter cannot be read just now.
    fn advance(&mut self) -> f64 {
        let Some(now) = read_number(&self.path) else {
            return 0.0;
        };
        let passed = if now >= self.last {
            now - self.last
        } else {
            self.range - self.last.min(self.range) + now
        };
        self.last = now;
        #[expect(clippy::cast_precision_loss, reason = "a fifth of a second is below 2^52 uJ")]
        let microjoules = passed as f64;
        microjoules / 1e6
    }
}

/// Opens the counters of all packages, below a folder of zones.
fn open_counters(powercap: &Path) -> Vec<EnergyCounter> {
    let Ok(zones) = fs::read_dir(powercap) else {
        return Vec::new();
    };
    zones.filter_map(|zone| EnergyCounter::open(&zone.ok()?.path())).collect()
}

impl PackageSampler {
    /// Starts to read; `None` when there is no counter that can be read.
    pub(super) fn start(powercap: &Path) -> Option<Self> {
        let mut counters = open_counters(powercap);
        if counters.is_empty() {
            return None;
        }
        let started = Instant::now();
        let readings = Arc::new(Mutex::new(Readings { num_readings: 1, ..Readings::default() }));
        let (stop, stopped) = mpsc::channel();
        let shared = Arc::clone(&readings);
        let thread = std::thread::spawn(move || {
            loop {
                // A sampler that is gone has hung up.
                let is_last = stopped.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout);
                let joules = counters.iter_mut().map(EnergyCounter::advance).sum();
                let mut readings = shared.lock().unwrap_or_else(PoisonError::into_inner);
                readings.add(started.elapsed().as_secs_f64(), joules);
                if is_last {
                    return;
                }
            }
        });
        Some(Self { readings, stop: Some(stop), thread: Some(thread) })
    }

    pub(super) fn latest(&self) -> Option<DeviceReading> {
        let power_w = Some(self.readings().last_power_w?);
        let device_name = DEVICE_NAME.to_owned();
        Some(DeviceReading { device_name, power_w, ..DeviceReading::default() })
    }

    /// Reads a last time and sums up.
    pub(super) fn stop(mut self) -> Option<GpuSummary> {
        self.end_thread();
        let readings = self.readings();
        let has_time = readings.seconds > 0.0;
        let power = has_time.then(|| readings.joules / readings.seconds);
        Some(GpuSummary {
            device_name: Some(DEVICE_NAME.to_owned()),
            samples_count: readings.num_readings,
            duration_s: readings.seconds,
            avg_power_w: power,
            peak_power_w: readings.peak_power_w.or(power),
            energy_consumed_joules: has_time.then_some(readings.joules),
            ..GpuSummary::default()
        })
    }

    fn readings(&self) -> Readings {
        *self.readings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end_thread(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the thread only reads files and adds");
        }
    }
}

impl Drop for PackageSampler {
    fn drop(&mut self) {
        self.end_thread();
    }
}

impl Readings {
    /// Adds the joules since the last reading, at `seconds` since the first one.
    fn add(&mut self, seconds: f64, joules: f64) {
        let interval = seconds - self.seconds;
        self.num_readings += 1;
        self.seconds = seconds;
        self.joules += joules;
        if interval >= MIN_PEAK_INTERVAL_S {
            let power = joules / interval;
            self.last_power_w = Some(power);
            self.peak_power_w = Some(self.peak_power_w.map_or(power, |peak| peak.max(power)));
        }
    }
}

fn read_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(folder: &Path, zone: &str, files: &[(&str, &str)]) -> PathBuf {
        let path = folder.join(zone);
        fs::create_dir(&path).unwrap();
        for (file, text) in files {
            fs::write(path.join(file), text).unwrap();
        }
        path
    }

    #[test]
    fn only_packages_with_a_readable_counter_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let counter = [("energy_uj", "5\n"), ("max_energy_range_uj", "100\n")];
        let with_name = |name| [[("name", name)].as_slice(), &counter].concat();
        zone(folder.path(), "intel-rapl:0", &with_name("package-0\n"));
        zone(folder.path(), "intel-rapl:0:0", &with_name("core\n"));
        zone(folder.path(), "intel-rapl:1", &with_name("package-1\n"));
        zone(folder.path(), "intel-rapl:2", &[("name", "package-2\n")]);
        zone(folder.path(), "intel-rapl", &[]);
        assert_eq!(open_counters(folder.path()).len(), 2);
        assert!(open_counters(&folder.path().join("absent")).is_empty());
    }

    #[test]
    fn a_counter_that_starts_again_loses_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let files = [
            ("name", "package-0\n"),
            ("energy_uj", "9000000\n"),
            ("max_energy_range_uj", "10000000\n"),
        ];
        let zone = zone(folder.path(), "intel-rapl:0", &files);
        let mut counter = EnergyCounter::open(&zone).unwrap();
        for (text, joules) in [("9500000", 0.5), ("500000", 1.0), ("500000", 0.0), ("?", 0.0)] {
            fs::write(zone.join("energy_uj"), text).unwrap();
            assert_eq!(counter.advance().to_bits(), f64::to_bits(joules), "{text}");
        }
    }

    #[test]
    fn the_highest_power_is_that_of_one_interval() {
        let mut readings = Readings::default();
        for (seconds, joules) in [(0.2, 10.0), (0.4, 20.0), (0.401, 5.0), (0.601, 2.0)] {
            readings.add(seconds, joules);
        }
        let peak = readings.peak_power_w.unwrap();
        assert!((peak - 100.0).abs() < 1e-9, "{peak}");
        assert!((readings.joules - 37.0).abs() < 1e-9);
    }
}
