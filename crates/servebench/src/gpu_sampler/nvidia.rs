//! Samples of an NVIDIA GPU from one `nvidia-smi` that runs as long as the level.
//!
//! Each line is a sample at the time it arrives. Energy is the integral of power by trapezoids,
//! and mean power is energy over time, so that samples that come late do not count less.

use super::DeviceReading;
use crate::results::GpuSummary;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// What is asked for, in the order of [`Sample::parse`].
const QUERY: &str = "--query-gpu=name,utilization.gpu,utilization.memory,memory.used,\
    memory.total,power.draw,temperature.gpu,clocks.sm";
/// Fields of a line after the name.
const NUM_VALUES: usize = 7;
/// Milliseconds between samples.
const INTERVAL_MS: &str = "200";

/// One line of `nvidia-smi`; a field that the GPU does not tell is `None`.
#[derive(Clone, Debug, PartialEq)]
struct Sample {
    /// Since the sampler was started, in seconds.
    at: f64,
    name: String,
    gpu_util: Option<f64>,
    mem_util: Option<f64>,
    vram_used_mb: Option<f64>,
    vram_total_mb: Option<f64>,
    power_w: Option<f64>,
    temp_c: Option<f64>,
    sm_clock_mhz: Option<f64>,
}

/// Runs `nvidia-smi` and collects its lines.
#[derive(Debug)]
pub(super) struct NvidiaSampler {
    child: Child,
    samples: Arc<Mutex<Vec<Sample>>>,
}

impl NvidiaSampler {
    /// Starts the program; `None` when it cannot be started.
    pub(super) fn start(program: &Path, index: u32) -> Option<Self> {
        let index = index.to_string();
        let mut command = Command::new(program);
        command
            .args([QUERY, "--format=csv,noheader,nounits", "-i", &index, "-lms", INTERVAL_MS])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().ok()?;
        let stdout = child.stdout.take()?;
        let samples = Arc::default();
        let collected = Arc::clone(&samples);
        // Ends with the program, whose output then ends.
        std::thread::spawn(move || collect(stdout, &collected));
        Some(Self { child, samples })
    }

    #[cfg(test)]
    pub(super) fn process_id(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn latest(&self) -> Option<DeviceReading> {
        let samples = lock(&self.samples);
        samples.last().map(|sample| DeviceReading {
            device_name: sample.name.clone(),
            power_w: sample.power_w,
            gpu_util: sample.gpu_util,
            vram_used_mb: sample.vram_used_mb,
            vram_total_mb: sample.vram_total_mb,
            temp_c: sample.temp_c,
        })
    }

    /// Ends the program and sums up its samples; `None` when it gave none.
    pub(super) fn stop(self) -> Option<GpuSummary> {
        summarize(&lock(&self.samples))
    }
}

impl Drop for NvidiaSampler {
    fn drop(&mut self) {
        // It may have ended by itself, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collect(stdout: ChildStdout, samples: &Mutex<Vec<Sample>>) {
    let started = Instant::now();
    for line in BufReader::new(stdout).lines() {
        let Ok(line) = line else {
            return;
        };
        if let Some(sample) = Sample::parse(&line, started.elapsed().as_secs_f64()) {
            lock(samples).push(sample);
        }
    }
}

fn lock(samples: &Mutex<Vec<Sample>>) -> MutexGuard<'_, Vec<Sample>> {
    samples.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sample {
    /// Reads a line; `None` when it is none of the query's.
    fn parse(line: &str, at: f64) -> Option<Self> {
        // The name comes first, so a comma in it does no harm from the right.
        let mut fields: Vec<_> = line.rsplitn(NUM_VALUES + 1, ',').map(str::trim).collect();
        fields.reverse();
        let [name, values @ ..] = fields.as_slice() else {
            return None;
        };
        let number = |text: &&str| text.parse().ok().filter(|value: &f64| value.is_finite());
        let values: Vec<_> = values.iter().map(number).collect();
        let &[gpu_util, mem_util, vram_used_mb, vram_total_mb, power_w, temp_c, sm_clock_mhz] =
            values.as_slice()
        else {
            return None;
        };
        values.iter().any(Option::is_some).then(|| Self {
            at,
            name: (*name).to_owned(),
            gpu_util,
            mem_util,
            vram_used_mb,
            vram_total_mb,
            power_w,
            temp_c,
            sm_clock_mhz,
        })
    }
}

fn summarize(samples: &[Sample]) -> Option<GpuSummary> {
    let (first, last) = (samples.first()?, samples.last()?);
    let values = |field: fn(&Sample) -> Option<f64>| samples.iter().filter_map(field);
    let mean_of = |field: fn(&Sample) -> Option<f64>| mean(values(field));
    let peak_of = |field: fn(&Sample) -> Option<f64>| values(field).reduce(f64::max);
    let power: Vec<_> =
        samples.iter().filter_map(|sample| Some((sample.at, sample.power_w?))).collect();
    let energy = energy(&power);
    let power_mean = energy.map_or_else(
        || mean(power.iter().map(|(_, power)| *power)),
        |(joules, seconds)| Some(joules / seconds),
    );
    Some(GpuSummary {
        device_name: Some(last.name.clone()),
        samples_count: samples.len(),
        duration_s: last.at - first.at,
        avg_gpu_util: mean_of(|sample| sample.gpu_util),
        peak_gpu_util: peak_of(|sample| sample.gpu_util),
        avg_mem_util: mean_of(|sample| sample.mem_util),
        peak_mem_util: peak_of(|sample| sample.mem_util),
        avg_vram_used_mb: mean_of(|sample| sample.vram_used_mb),
        peak_vram_used_mb: peak_of(|sample| sample.vram_used_mb),
        vram_total_mb: peak_of(|sample| sample.vram_total_mb),
        avg_power_w: power_mean,
        peak_power_w: peak_of(|sample| sample.power_w),
        energy_consumed_joules: energy.map(|(joules, _)| joules),
        avg_temp_c: mean_of(|sample| sample.temp_c),
        peak_temp_c: peak_of(|sample| sample.temp_c),
        avg_sm_clock_mhz: mean_of(|sample| sample.sm_clock_mhz),
        tokens_per_joule: None,
    })
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    (count > 0.0).then_some(sum / count)
}

/// Returns joules and seconds between the first and the last of `(seconds, watts)`; `None` when
/// they are not two moments.
fn energy(power: &[(f64, f64)]) -> Option<(f64, f64)> {
    let seconds = power.last()?.0 - power.first()?.0;
    let slices = power.windows(2).map(|pair| {
        let [(start, first), (end, second)] = [pair[0], pair[1]];
        (end - start) * (first + second) / 2.0
    });
    (seconds > 0.0).then(|| (slices.sum(), seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn energy_is_power_over_time_whenever_the_samples_come() {
        // 100 W for a second, then a ramp to 300 W over three: 100 + 600 J.
        assert_eq!(energy(&[(1.0, 100.0), (2.0, 100.0), (5.0, 300.0)]), Some((700.0, 4.0)));
        assert_eq!(energy(&[(1.0, 100.0)]), None);
        assert_eq!(energy(&[]), None);
    }

    #[test]
    fn lines_are_read_with_missing_fields_and_refused_when_they_are_none() {
        let line = "NVIDIA A100, PCIe, 50, [N/A], 10.5, 40960, [Not Supported], 61, 1410";
        let sample = Sample::parse(line, 2.0).unwrap();
        assert_eq!((sample.name.as_str(), sample.at), ("NVIDIA A100, PCIe", 2.0));
        assert_eq!((sample.gpu_util, sample.mem_util), (Some(50.0), None));
        assert_eq!((sample.vram_used_mb, sample.vram_total_mb), (Some(10.5), Some(40960.0)));
        assert_eq!((sample.power_w, sample.temp_c), (None, Some(61.0)));
        assert_eq!(sample.sm_clock_mhz, Some(1410.0));
        for line in ["", "No devices were found", "a, b, c, d, e, f, g, h", "x, 1, 2"] {
            assert_eq!(Sample::parse(line, 0.0), None, "{line}");
        }
    }

    #[test]
    fn one_sample_has_power_but_no_energy() {
        let sample = Sample::parse("G, 1, 1, 1, 1, 70, 1, 1", 0.0).unwrap();
        let summary = summarize(&[sample]).unwrap();
        assert_eq!((summary.avg_power_w, summary.energy_consumed_joules), (Some(70.0), None));
        assert_eq!(summarize(&[]), None);
    }
}
