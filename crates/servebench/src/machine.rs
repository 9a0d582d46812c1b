//! The machine on which servebench runs.
//!
//! Reads what the system offers without a library: files on Linux, small programs elsewhere. What
//! cannot be found out is `None`. Parsing is apart from reading, so that it can be tested with
//! what other systems say.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Longest wait for a program that tells about the machine; a GPU driver may have to start first.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(5);

/// What is known of the machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Machine {
    /// Operating system and its version.
    pub platform: String,
    /// Name of the processor.
    pub cpu: Option<String>,
    /// Logical processors.
    pub num_logical_cpus: usize,
    /// Memory, in GiB.
    pub ram_gb: Option<f64>,
    /// Names of the GPUs.
    pub gpus: Option<Vec<String>>,
}

impl Machine {
    /// Looks at this machine. Takes as long as `nvidia-smi` does where there is one.
    #[must_use]
    pub fn detect() -> Self {
        let cpu = cpu();
        Self {
            platform: platform(),
            num_logical_cpus: std::thread::available_parallelism().map_or(1, usize::from),
            ram_gb: ram_gb(),
            gpus: gpus(cpu.as_deref()),
            cpu,
        }
    }
}

fn platform() -> String {
    let arch = std::env::consts::ARCH;
    let parts = if cfg!(target_os = "linux") {
        let kernel = read("/proc/sys/kernel/osrelease").map(|release| format!("Linux {release}"));
        vec![read("/etc/os-release").and_then(|text| os_release_name(&text)), kernel]
    } else if cfg!(target_os = "macos") {
        vec![output_of("sw_vers", &["-productVersion"]).map(|version| format!("macOS {version}"))]
    } else if cfg!(windows) {
        vec![output_of("cmd", &["/c", "ver"])]
    } else {
        vec![output_of("uname", &["-sr"])]
    };
    let mut parts: Vec<_> = parts.into_iter().flatten().collect();
    if parts.is_empty() {
        parts.push(std::env::consts::OS.to_owned());
    }
    parts.push(arch.to_owned());
    parts.join(", ")
}

fn cpu() -> Option<String> {
    if cfg!(target_os = "linux") {
        read("/proc/cpuinfo").and_then(|text| cpuinfo_name(&text))
    } else if cfg!(windows) {
        std::env::var("PROCESSOR_IDENTIFIER").ok()
    } else {
        let macos = output_of("sysctl", &["-n", "machdep.cpu.brand_string"]);
        macos.or_else(|| output_of("sysctl", &["-n", "hw.model"]))
    }
}

fn ram_gb() -> Option<f64> {
    if cfg!(target_os = "linux") {
        return read("/proc/meminfo").and_then(|text| meminfo_gb(&text));
    }
    let bytes = output_of("sysctl", &["-n", "hw.memsize"])
        .or_else(|| output_of("sysctl", &["-n", "hw.physmem"]))?;
    bytes.parse().ok().map(|bytes: f64| gib(bytes))
}

fn gpus(cpu: Option<&str>) -> Option<Vec<String>> {
    let fields = ["--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"];
    if let Some(text) = output_of("nvidia-smi", &fields) {
        return Some(nvidia_gpus(&text)).filter(|gpus| !gpus.is_empty());
    }
    let is_apple = cfg!(all(target_os = "macos", target_arch = "aarch64"));
    // The GPU is part of the chip and shares its memory.
    cpu.filter(|_| is_apple).map(|chip| vec![format!("{chip} GPU (unified memory)")])
}

/// Returns `PRETTY_NAME` of an `os-release` file.
fn os_release_name(text: &str) -> Option<String> {
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(name.trim_matches(['"', '\'']).to_owned()).filter(|name| !name.is_empty())
}

/// Returns the processor's name in `/proc/cpuinfo`; processors that are not x86 have other fields.
fn cpuinfo_name(text: &str) -> Option<String> {
    let field = |name: &str| {
        let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
        let found = pairs.find(|(key, value)| key.trim() == name && !value.trim().is_empty());
        found.map(|(_, value)| value.trim().to_owned())
    };
    ["model name", "Model", "Hardware", "cpu model", "uarch"].into_iter().find_map(field)
}

/// Returns the memory that `/proc/meminfo` tells, in GiB.
fn meminfo_gb(text: &str) -> Option<f64> {
    let value = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: f64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(gib(kib * 1024.0))
}

/// Returns the GPUs that `nvidia-smi` lists as name, MiB and version of the driver.
fn nvidia_gpus(text: &str) -> Vec<String> {
    let mut gpus = Vec::new();
    for line in text.lines() {
        let fields: Vec<_> = line.split(',').map(str::trim).collect();
        let [name, memory, driver] = fields[..] else {
            continue;
        };
        let memory = memory
            .parse()
            .map_or_else(|_| memory.to_owned(), |mib: f64| format!("{:.1} GB", mib / 1024.0));
        gpus.push(format!("{name}, {memory}, driver {driver}"));
    }
    gpus
}

/// Returns bytes in GiB, to one digit after the point.
fn gib(bytes: f64) -> f64 {
    (bytes / f64::from(1 << 30) * 10.0).round() / 10.0
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Returns what a program prints; `None` when it is not there, fails, or takes too long.
fn output_of(program: &str, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let mut stdout = child.stdout.take()?;
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        let result = stdout.read_to_string(&mut text);
        // Nobody listens any more when the program took too long.
        let _ = sender.send(result.map(|_| text));
    });
    let text = receiver.recv_timeout(PROGRAM_TIMEOUT);
    if text.is_err() {
        // It may have ended just now, which is as good.
        let _ = child.kill();
    }
    let status = child.wait().ok()?;
    let text = text.ok()?.ok()?.trim().to_owned();
    (status.success() && !text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_named_on_x86_arm_and_risc_v() {
        for (text, name) in [
            ("processor\t: 0\nmodel name\t: AMD EPYC 9R14\nflags\t: fma", Some("AMD EPYC 9R14")),
            (
                "processor\t: 0\nBogoMIPS\t: 108\n\nModel\t: Raspberry Pi 5\n",
                Some("Raspberry Pi 5"),
            ),
            ("hart\t: 0\nuarch\t: sifive,u74\n", Some("sifive,u74")),
            ("processor\t: 0\nmodel name\t:\n", None),
            ("", None),
        ] {
            assert_eq!(cpuinfo_name(text).as_deref(), name);
        }
    }

    #[test]
    fn memory_is_read_in_gib() {
        let text = "MemTotal:       16302220 kB\nMemFree:  1 kB\n";
        assert_eq!(meminfo_gb(text), Some(15.5));
        assert_eq!(meminfo_gb("MemFree: 1 kB"), None);
        assert_eq!(meminfo_gb("MemTotal: many kB"), None);
    }

    #[test]
    fn systems_have_names() {
        let text = "ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n";
        assert_eq!(os_release_name(text).as_deref(), Some("Debian GNU/Linux 12 (bookworm)"));
        assert_eq!(os_release_name("ID=debian\n"), None);
    }

    #[test]
    fn gpus_are_listed_with_memory_and_driver_and_garbage_is_left_out() {
        let text = "NVIDIA GeForce RTX 3050, 6144, 551.76\nNVIDIA GB10, [N/A], 580.95\n\nFailed\n";
        let expected =
            ["NVIDIA GeForce RTX 3050, 6.0 GB, driver 551.76", "NVIDIA GB10, [N/A], driver 580.95"];
        assert_eq!(nvidia_gpus(text), expected);
    }

    #[test]
    fn this_machine_has_a_system_and_processors() {
        let machine = Machine::detect();
        assert!(machine.platform.contains(std::env::consts::ARCH), "{machine:?}");
        assert!(machine.num_logical_cpus >= 1, "{machine:?}");
        #[cfg(target_os = "linux")]
        assert!(machine.ram_gb.is_some_and(|ram_gb| ram_gb > 0.0), "{machine:?}");
    }

    #[test]
    fn a_program_that_is_not_there_tells_nothing() {
        assert_eq!(output_of("no-such-program-anywhere", &[]), None);
    }
}
