//! The instruction set that kernels run on, detected once.
//!
//! [`Isa`] can only be built by detection, so that holding `Isa::Avx512` proves that the
//! instructions exist; dispatch relies on it. `MINI_INFER_ISA=scalar|avx2|avx512` forces a set.

use std::fmt;

/// An instruction set that was found on this processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Portable code.
    Scalar,
    /// AVX2 with FMA and F16C.
    Avx2(Avx2),
    /// AVX-512 F, BW, DQ, VL and VNNI.
    Avx512(Avx512),
}

/// Proof that AVX2, FMA and F16C are present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2(());

/// Proof that AVX-512 F, BW, DQ, VL and VNNI are present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512(());

impl Avx2 {
    /// Returns the proof if this processor has the instructions.
    #[must_use]
    pub fn detect() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
        {
            return Some(Self(()));
        }
        None
    }
}

impl Avx512 {
    /// Returns the proof if this processor has the instructions.
    #[must_use]
    pub fn detect() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        if Avx2::detect().is_some()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni")
        {
            return Some(Self(()));
        }
        None
    }
}

impl Isa {
    /// Returns every instruction set present, the widest first; `Scalar` is always there.
    #[must_use]
    pub fn all_present() -> Vec<Self> {
        let widest = Avx512::detect().map(Self::Avx512);
        let middle = Avx2::detect().map(Self::Avx2);
        widest.into_iter().chain(middle).chain([Self::Scalar]).collect()
    }

    /// Returns the widest set present, or the one that `MINI_INFER_ISA` asks for.
    ///
    /// # Errors
    /// When the variable names an unknown or absent set.
    pub fn from_env() -> Result<Self, IsaError> {
        match std::env::var("MINI_INFER_ISA") {
            Ok(name) if !name.is_empty() => Self::by_name(&name),
            Ok(_) | Err(std::env::VarError::NotPresent) => Ok(Self::all_present()[0]),
            Err(std::env::VarError::NotUnicode(name)) => {
                Err(IsaError { asked: name.to_string_lossy().into_owned() })
            }
        }
    }

    /// Returns the set called `name`.
    ///
    /// # Errors
    /// When there is no such set on this processor.
    pub fn by_name(name: &str) -> Result<Self, IsaError> {
        Self::all_present()
            .into_iter()
            .find(|isa| isa.name() == name)
            .ok_or_else(|| IsaError { asked: name.to_owned() })
    }

    /// Returns the name that `MINI_INFER_ISA` uses.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2(_) => "avx2",
            Self::Avx512(_) => "avx512",
        }
    }
}

/// An instruction set that was asked for and is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IsaError {
    /// The name that was asked for.
    pub asked: String,
}

impl fmt::Display for IsaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let present: Vec<_> = Isa::all_present().into_iter().map(Isa::name).collect();
        write!(
            f,
            "instruction set {:?} is not available here; MINI_INFER_ISA can be {}",
            self.asked,
            present.join(", ")
        )
    }
}

impl std::error::Error for IsaError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalar_is_always_present_and_named_sets_round_trip() {
        let present = Isa::all_present();
        assert_eq!(present.last(), Some(&Isa::Scalar));
        for isa in present {
            assert_eq!(Isa::by_name(isa.name()), Ok(isa));
        }
        assert!(Isa::by_name("mmx").is_err());
    }
}
