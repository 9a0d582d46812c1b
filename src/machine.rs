//! What this machine has: cores and memory.
//!
//! On Linux, memory is what `/proc/meminfo` calls available, lowered to what the container's
//! control groups (version 1 or 2) still allow; elsewhere, what the `sysinfo` crate calls
//! available. Only this file knows platforms.

use std::num::NonZeroUsize;
use std::thread::available_parallelism;

/// Cores and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    /// Physical cores that this process may use.
    pub(crate) num_cores: NonZeroUsize,
    /// Memory.
    pub(crate) memory: Memory,
}

/// Memory of the machine, in bytes; `None` where the system does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// All of it.
    pub(crate) total_bytes: Option<u64>,
    /// What programs can still take, the container's limit included.
    pub(crate) available_bytes: Option<u64>,
    /// The container's limit, if there is one.
    pub(crate) limit_bytes: Option<u64>,
}

impl Machine {
    /// Looks at this machine.
    #[must_use]
    pub(crate) fn detect() -> Self {
        // An affinity mask or a container's share may leave fewer threads than there are cores.
        let usable = available_parallelism().map_or(1, NonZeroUsize::get);
        let num_cores = NonZeroUsize::new(num_cpus::get_physical().min(usable));
        Self { num_cores: num_cores.unwrap_or(NonZeroUsize::MIN), memory: memory() }
    }
}

#[cfg(target_os = "linux")]
fn memory() -> Memory {
    use std::fs::read_to_string;
    let meminfo = read_to_string("/proc/meminfo").unwrap_or_default();
    let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
    linux::memory(&meminfo, &groups, |path| read_to_string(path).ok())
}

#[cfg(not(target_os = "linux"))]
fn memory() -> Memory {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    Memory {
        total_bytes: Some(system.total_memory()).filter(|&bytes| bytes > 0),
        available_bytes: Some(system.available_memory()).filter(|&bytes| bytes > 0),
        limit_bytes: None,
    }
}

#[cfg(any(target_os = "linux", test))]
mod linux {
    use super::Memory;

    /// Version 1 says "no limit" with a huge number instead of a word.
    const NO_LIMIT: u64 = 1 << 60;

    /// Reads memory out of `/proc/meminfo`, `/proc/self/cgroup` and the control group files.
    pub(super) fn memory(
        meminfo: &str,
        groups: &str,
        read: impl Fn(&str) -> Option<String>,
    ) -> Memory {
        let mut memory = Memory {
            total_bytes: meminfo_bytes(meminfo, "MemTotal:"),
            available_bytes: meminfo_bytes(meminfo, "MemAvailable:"),
            limit_bytes: None,
        };
        for group in groups.lines() {
            for (limit, used) in group_limits(group, &read) {
                memory.limit_bytes = Some(memory.limit_bytes.map_or(limit, |old| old.min(limit)));
                let left = limit.saturating_sub(used);
                let available = memory.available_bytes;
                memory.available_bytes = Some(available.map_or(left, |old| old.min(left)));
            }
        }
        memory
    }

    fn meminfo_bytes(meminfo: &str, key: &str) -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(key))?;
        let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kibibytes.checked_mul(1024)
    }

    /// Returns limit and use of every control group above this process, from one line of
    /// `/proc/self/cgroup`: `hierarchy:controllers:path`.
    fn group_limits(group: &str, read: &impl Fn(&str) -> Option<String>) -> Vec<(u64, u64)> {
        let mut parts = group.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            return Vec::new();
        };
        let is_memory = controllers.split(',').any(|controller| controller == "memory");
        let (root, limit_file, used_file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max", "memory.current"),
            _ if is_memory => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
            }
            _ => return Vec::new(),
        };
        // A container sees its own group as the root while the path may name the host's, so
        // every folder from the path up to the root is looked at.
        let mut path = path.trim_end_matches('/');
        let mut limits = Vec::new();
        loop {
            let number = |file: &str| -> Option<u64> {
                read(&format!("{root}{path}/{file}"))?.trim().parse().ok()
            };
            if let (Some(limit), Some(used)) = (number(limit_file), number(used_file))
                && limit < NO_LIMIT
            {
                let file_bytes = read(&format!("{root}{path}/memory.stat"))
                    .and_then(|stat| inactive_file_bytes(&stat))
                    .unwrap_or(0);
                limits.push((limit, used.saturating_sub(file_bytes)));
            }
            let Some((parent, _)) = path.rsplit_once('/') else {
                return limits;
            };
            path = parent;
        }
    }

    /// Returns the page cache that the kernel gives back before it runs out.
    fn inactive_file_bytes(stat: &str) -> Option<u64> {
        let value = |key: &str| {
            stat.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u64>().ok())
        };
        value("total_inactive_file ").or_else(|| value("inactive_file "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:       16000 kB\nMemFree: 1 kB\nMemAvailable:    8000 kB\n";

    fn check(groups: &str, files: &[(&str, &str)], available: u64, limit: Option<u64>) {
        let read = |path: &str| {
            files.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned())
        };
        let memory = linux::memory(MEMINFO, groups, read);
        let expected = Memory {
            total_bytes: Some(16000 << 10),
            available_bytes: Some(available),
            limit_bytes: limit,
        };
        assert_eq!(memory, expected);
    }

    #[test]
    fn without_limits_the_kernel_s_estimate_counts() {
        check("0::/user.slice\n", &[], 8000 << 10, None);
        let unlimited =
            [("/sys/fs/cgroup/memory.max", "max\n"), ("/sys/fs/cgroup/memory.current", "5\n")];
        check("0::/\n", &unlimited, 8000 << 10, None);
    }

    #[test]
    fn a_container_s_limit_counts_in_both_versions() {
        let v2 = [
            ("/sys/fs/cgroup/memory.max", "1000000\n"),
            ("/sys/fs/cgroup/memory.current", "400000\n"),
            ("/sys/fs/cgroup/memory.stat", "anon 5\ninactive_file 100000\n"),
        ];
        check("0::/host/only/path\n", &v2, 700_000, Some(1_000_000));
        let v1 = [
            ("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1000000\n"),
            ("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "1000\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n"),
        ];
        check("5:cpu,cpuacct:/a\n4:memory:/a\n", &v1, 999_000, Some(1_000_000));
    }

    #[test]
    fn this_machine_has_a_core_and_some_memory() {
        assert!(Machine::detect().memory.available_bytes.is_some_and(|bytes| bytes > 0));
    }
}
