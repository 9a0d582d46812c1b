//! GPU use and power while a level runs; the processor's power where there is no GPU.
//!
//! The GPU is watched through `nvidia-smi`, which comes with the driver; the processor through the
//! energy counters that Linux shows to those who may read them. Both are those of this machine: for
//! a server elsewhere they say nothing, and the caller does not start them.

mod nvidia;
mod package_energy;

use crate::results::GpuSummary;
use nvidia::NvidiaSampler;
use package_energy::PackageSampler;
use std::path::Path;

/// Samples a GPU, or the processor where there is none, until it is stopped.
#[derive(Debug)]
pub struct GpuSampler {
    nvidia: Option<NvidiaSampler>,
    package: Option<PackageSampler>,
}

/// What a device does at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceReading {
    /// Name of the device.
    pub device_name: String,
    /// Power, in watts.
    pub power_w: Option<f64>,
    /// Use of the compute units, in percent.
    pub gpu_util: Option<f64>,
    /// Memory in use, in MiB.
    pub vram_used_mb: Option<f64>,
    /// Memory of the device, in MiB.
    pub vram_total_mb: Option<f64>,
    /// Temperature, in degrees Celsius.
    pub temp_c: Option<f64>,
}

/// Where samples come from; other places than the system's are for tests.
#[derive(Clone, Copy, Debug)]
struct Sources<'a> {
    nvidia_smi: &'a Path,
    powercap: &'a Path,
}

impl GpuSampler {
    /// Starts to sample the GPU with this number, and the processor's power, where they can be
    /// read; `None` where neither can. Returns at once: the first sample comes when the driver
    /// answers.
    #[must_use]
    pub fn start(index: u32) -> Option<Self> {
        let nvidia_smi = Path::new("nvidia-smi");
        let powercap = Path::new("/sys/class/powercap");
        Self::start_from(Sources { nvidia_smi, powercap }, index)
    }

    fn start_from(sources: Sources<'_>, index: u32) -> Option<Self> {
        let nvidia = NvidiaSampler::start(sources.nvidia_smi, index);
        let package = PackageSampler::start(sources.powercap);
        (nvidia.is_some() || package.is_some()).then_some(Self { nvidia, package })
    }

    /// Returns the last sample; `None` before the first one.
    #[must_use]
    pub fn latest(&self) -> Option<DeviceReading> {
        let gpu = self.nvidia.as_ref().and_then(NvidiaSampler::latest);
        gpu.or_else(|| self.package.as_ref().and_then(PackageSampler::latest))
    }

    /// Stops and returns what was seen; `output_throughput` in tokens per second. `None` when no
    /// sample came.
    #[must_use]
    pub fn stop(self, output_throughput: f64) -> Option<GpuSummary> {
        let gpu = self.nvidia.and_then(NvidiaSampler::stop);
        let package = self.package.and_then(PackageSampler::stop);
        let mut summary = gpu.or(package)?;
        let power = summary.avg_power_w.filter(|power| *power > 0.0);
        let rate = Some(output_throughput).filter(|rate| rate.is_finite() && *rate > 0.0);
        summary.tokens_per_joule = power.zip(rate).map(|(power, rate)| rate / power);
        Some(summary)
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::time::{Duration, Instant};

    fn fake_nvidia_smi() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_nvidia_smi.sh")
    }

    fn wait_for<T>(mut poll: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + Duration::from_secs(60);
        while Instant::now() < deadline {
            if let Some(value) = poll() {
                return value;
            }
            std::thread::yield_now();
        }
        panic!("nothing came within a minute");
    }

    /// A folder with one package at 2 J, or none.
    fn powercap(has_package: bool) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        if has_package {
            let zone = folder.path().join("intel-rapl:0");
            std::fs::create_dir(&zone).unwrap();
            for (file, text) in [
                ("name", "package-0\n"),
                ("energy_uj", "2000000\n"),
                ("max_energy_range_uj", "262143328850\n"),
            ] {
                std::fs::write(zone.join(file), text).unwrap();
            }
        }
        folder
    }

    #[test]
    fn neither_gpu_nor_counters_is_no_sampler() {
        let empty = powercap(false);
        let sources = Sources { nvidia_smi: Path::new("/no/such/program"), powercap: empty.path() };
        assert!(GpuSampler::start_from(sources, 0).is_none());
    }

    #[test]
    fn a_gpu_is_summed_up_and_its_program_is_gone_afterwards() {
        let folder = powercap(true);
        let program = fake_nvidia_smi();
        let sources = Sources { nvidia_smi: &program, powercap: folder.path() };
        let sampler = GpuSampler::start_from(sources, 0).unwrap();
        let pid = sampler.nvidia.as_ref().unwrap().process_id();
        // The last line of the script.
        let reading = wait_for(|| sampler.latest().filter(|reading| reading.temp_c == Some(62.0)));
        assert_eq!((reading.device_name.as_str(), reading.power_w), ("Fake RTX", Some(150.0)));
        let summary = sampler.stop(300.0).unwrap();
        assert_eq!(summary.device_name.as_deref(), Some("Fake RTX"));
        assert_eq!(summary.samples_count, 3);
        assert_eq!((summary.avg_gpu_util, summary.peak_gpu_util), (Some(60.0), Some(90.0)));
        assert_eq!((summary.avg_mem_util, summary.peak_mem_util), (Some(20.0), Some(30.0)));
        assert_eq!(summary.peak_vram_used_mb, Some(3000.0));
        assert_eq!(summary.vram_total_mb, Some(6144.0));
        assert_eq!((summary.peak_power_w, summary.peak_temp_c), (Some(150.0), Some(62.0)));
        assert!(summary.avg_power_w.is_some_and(|power| (50.0..=150.0).contains(&power)));
        let tokens_per_joule = summary.tokens_per_joule.unwrap();
        assert!((2.0..=6.0).contains(&tokens_per_joule), "{tokens_per_joule}");
        #[cfg(target_os = "linux")]
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
        assert!(pid > 0);
    }

    #[test]
    fn fields_that_a_gpu_does_not_tell_are_unknown_and_garbage_is_left_out() {
        let folder = powercap(false);
        let program = fake_nvidia_smi();
        let sources = Sources { nvidia_smi: &program, powercap: folder.path() };
        let sampler = GpuSampler::start_from(sources, 1).unwrap();
        wait_for(|| sampler.latest().filter(|reading| reading.gpu_util == Some(30.0)));
        let summary = sampler.stop(10.0).unwrap();
        assert_eq!((summary.samples_count, summary.avg_gpu_util), (2, Some(20.0)));
        assert_eq!((summary.avg_power_w, summary.energy_consumed_joules), (None, None));
        assert_eq!((summary.vram_total_mb, summary.tokens_per_joule), (None, None));
    }

    #[test]
    fn the_processor_s_power_is_told_where_nvidia_smi_finds_no_gpu() {
        let folder = powercap(true);
        let program = fake_nvidia_smi();
        let sources = Sources { nvidia_smi: &program, powercap: folder.path() };
        let sampler = GpuSampler::start_from(sources, 9).unwrap();
        let counter = folder.path().join("intel-rapl:0/energy_uj");
        std::fs::write(counter, "5000000\n").unwrap();
        let summary = sampler.stop(100.0).unwrap();
        assert_eq!(summary.device_name.as_deref(), Some("CPU package (RAPL)"));
        assert_eq!(summary.energy_consumed_joules, Some(3.0));
        let (power, tokens_per_joule) =
            (summary.avg_power_w.unwrap(), summary.tokens_per_joule.unwrap());
        assert!((power - 3.0 / summary.duration_s).abs() < 1e-9 * power);
        assert!((tokens_per_joule - 100.0 / power).abs() < 1e-9 * tokens_per_joule);
        assert_eq!(summary.avg_gpu_util, None);
    }
}
