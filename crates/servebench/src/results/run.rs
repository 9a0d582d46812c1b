//! A run and its file.

use super::environment::Environment;
use super::level::{LevelResult, Mode};
use super::run_config::RunConfig;
use super::summary::{GoodputAt, GpuSummary};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Version of `run.json`. Changes when an older reader would misread a file; a new optional field
/// does not change it.
pub const SCHEMA_VERSION: u32 = 1;

/// Why a search for capacity ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CapacityReason {
    /// The gap between pass and fail is small enough.
    Converged,
    /// The highest load allowed passes.
    MaxReached,
    /// The lowest load fails.
    StartFailed,
}

/// The highest load that meets the SLO.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CapacityResult {
    /// What the load counts.
    pub mode: Mode,
    /// Share of requests that must meet the SLO.
    pub target: f64,
    /// The SLO on TTFT, in milliseconds.
    pub slo_ttft_ms: Option<f64>,
    /// The SLO on TPOT, in milliseconds.
    pub slo_tpot_ms: Option<f64>,
    /// Highest load that passes.
    pub capacity: Option<f64>,
    /// Lowest load that fails.
    pub first_fail: Option<f64>,
    /// Why the search ended.
    pub reason: CapacityReason,
}

/// How much a finding matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Good to know.
    #[default]
    Info,
    /// A little.
    Low,
    /// Worth a look.
    Medium,
    /// It decides the figures.
    High,
}

/// One thing that limits the server, or the measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Finding {
    /// What it is about, such as `Client` or `Queue/Slot`.
    pub category: String,
    /// How much it matters.
    pub severity: Severity,
    /// The finding in one sentence.
    pub headline: String,
    /// Figures that show it.
    pub evidence: Vec<String>,
    /// What to do.
    pub recommendations: Vec<String>,
}

/// What limits the server, over all levels.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Diagnosis {
    /// Category of what matters most.
    pub primary_bottleneck: String,
    /// `excellent`, `degraded`, `bottlenecked` or `unknown`.
    pub overall_health: String,
    /// The findings, what matters most first.
    pub findings: Vec<Finding>,
}

/// A run: what was asked, where, and what was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// Version of the file; files without one have version 1.
    #[serde(default = "first_version")]
    pub schema_version: u32,
    /// What the run is called in reports.
    pub label: String,
    /// What was asked.
    pub config: RunConfig,
    /// Where, when and against what.
    pub environment: Environment,
    /// What was measured, by load.
    pub levels: Vec<LevelResult>,
    /// The result of a search for capacity.
    #[serde(default)]
    pub capacity: Option<CapacityResult>,
    /// GPU use.
    #[serde(default)]
    pub gpu_telemetry: Option<GpuSummary>,
    /// What limits the server.
    #[serde(default)]
    pub bottleneck_diagnosis: Option<Diagnosis>,
    /// Load and good requests per second at 90 % and 99 % attainment, over the levels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goodput_at: Option<Vec<GoodputAt>>,
    /// Whether the user stopped the run before its end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
}

fn first_version() -> u32 {
    1
}

impl RunResult {
    /// Creates a run of which no more is known yet.
    #[must_use]
    pub fn new(
        label: String,
        config: RunConfig,
        environment: Environment,
        levels: Vec<LevelResult>,
    ) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            label,
            config,
            environment,
            levels,
            capacity: None,
            gpu_telemetry: None,
            bottleneck_diagnosis: None,
            goodput_at: None,
            interrupted: false,
        }
    }

    /// Reads a run.
    ///
    /// # Errors
    /// When the file cannot be read, is no run, or is newer than this program.
    pub fn read(path: &Path) -> Result<Self, RunFileError> {
        let path_of = || path.to_owned();
        let text =
            std::fs::read(path).map_err(|source| RunFileError::Read { path: path_of(), source })?;
        #[derive(Deserialize)]
        struct Version {
            #[serde(default = "first_version")]
            schema_version: u32,
        }
        let not_a_run = |source| RunFileError::NotARun { path: path_of(), source };
        let Version { schema_version: got } = serde_json::from_slice(&text).map_err(not_a_run)?;
        if got > SCHEMA_VERSION {
            return Err(RunFileError::TooNew { path: path_of(), got });
        }
        serde_json::from_slice(&text).map_err(not_a_run)
    }

    /// Writes the run beside `path` and renames it there, so that a reader never sees half a file.
    ///
    /// # Errors
    /// When the folder cannot be made or the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), RunFileError> {
        let failed = |source| RunFileError::Write { path: path.to_owned(), source };
        let text = serde_json::to_vec(self).map_err(|error| failed(error.into()))?;
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        std::fs::write(&partial, text).map_err(failed)?;
        std::fs::rename(&partial, path).map_err(failed)
    }
}

/// Why a run's file cannot be used.
#[derive(Debug)]
pub enum RunFileError {
    /// It cannot be read.
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It cannot be written.
    Write {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It is no run.
    NotARun {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        source: serde_json::Error,
    },
    /// A newer program wrote it.
    TooNew {
        /// The file.
        path: PathBuf,
        /// Its version.
        got: u32,
    },
}

impl fmt::Display for RunFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { path, .. } => write!(f, "{} cannot be read", path.display()),
            Self::Write { path, .. } => write!(f, "{} cannot be written", path.display()),
            Self::NotARun { path, source } => {
                write!(f, "{} is not a run of servebench: {source}", path.display())
            }
            Self::TooNew { path, got } => write!(
                f,
                "{} has version {got}, this program reads up to {SCHEMA_VERSION}; use a newer one",
                path.display()
            ),
        }
    }
}

impl std::error::Error for RunFileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read { source, .. } | Self::Write { source, .. } => Some(source),
            // Said in the message.
            Self::NotARun { .. } | Self::TooNew { .. } => None,
        }
    }
}
