//! The instruction set that kernels run on, detected once.
//!
//! [`Isa`] can only be built by detection, so that holding `Isa::Avx512` proves that the
//! instructions exist; dispatch relies on it. Each processor family has its own sets, and only
//! those are variants in a build for it. `MINI_INFER_ISA` forces a set: `scalar` everywhere,
//! `avx2`, `avx-vnni` or `avx512` on x86-64, `neon`, `neon-dotprod` or `neon-i8mm` on 64-bit ARM.

use std::fmt;

/// An instruction set that was found on this processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Portable code.
    Scalar,
    /// AVX2 with FMA and F16C, with or without AVX-VNNI's dot products of bytes.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// AVX-512 F, BW, DQ, VL and VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    /// NEON, with or without instructions for dot products of bytes.
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
}

/// Proof that AVX2, FMA and F16C are present.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2 {
    /// The instructions for dot products of bytes, where they are present and to be used.
    pub(crate) vnni: Option<AvxVnni>,
}

/// Proof that AVX-VNNI is present: dot products of four bytes in vectors of AVX2's width.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AvxVnni(());

/// Proof that AVX-512 F, BW, DQ, VL and VNNI are present.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512(());

/// NEON, which every 64-bit ARM processor has, and what it multiplies bytes with.
#[cfg(target_arch = "aarch64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neon {
    /// The instructions for dot products of bytes.
    pub(crate) byte_dots: NeonByteDots,
}

/// What NEON multiplies bytes with.
#[cfg(target_arch = "aarch64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NeonByteDots {
    /// Widening multiplications, which are part of NEON.
    Widening,
    /// Dot products of four bytes.
    Dotprod(Dotprod),
    /// Products of matrices of 2 by 8 bytes, and dot products.
    I8mm(I8mm),
}

/// Proof that NEON's dot products of bytes (`FEAT_DotProd`) are present.
#[cfg(target_arch = "aarch64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dotprod(());

/// Proof that NEON's matrix products of bytes (`FEAT_I8MM`) are present, and dot products too.
#[cfg(target_arch = "aarch64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct I8mm(Dotprod);

#[cfg(target_arch = "aarch64")]
const _: () = assert!(cfg!(target_feature = "neon"), "code for 64-bit ARM relies on NEON");

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    /// Returns the proof if this processor has the instructions, without AVX-VNNI.
    #[must_use]
    pub fn detect() -> Option<Self> {
        let present = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        present.then_some(Self { vnni: None })
    }

    /// Returns AVX2 with each way to multiply bytes that is present, the fastest first.
    pub(crate) fn all_present() -> impl Iterator<Item = Self> {
        let plain = Self::detect();
        let vnni = plain.and_then(|_| AvxVnni::detect()).map(|vnni| Self { vnni: Some(vnni) });
        vnni.into_iter().chain(plain)
    }
}

#[cfg(target_arch = "x86_64")]
impl AvxVnni {
    /// Returns the proof if this processor has the instructions.
    pub(crate) fn detect() -> Option<Self> {
        is_x86_feature_detected!("avxvnni").then_some(Self(()))
    }
}

#[cfg(target_arch = "x86_64")]
impl Avx512 {
    /// Returns the proof if this processor has the instructions.
    #[must_use]
    pub fn detect() -> Option<Self> {
        let present = Avx2::detect().is_some()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        present.then_some(Self(()))
    }
}

#[cfg(target_arch = "aarch64")]
impl Neon {
    /// Returns NEON with each way to multiply bytes that is present, the fastest first.
    fn all_present() -> impl Iterator<Item = Self> {
        let matrix = I8mm::detect().map(NeonByteDots::I8mm);
        let dot = Dotprod::detect().map(NeonByteDots::Dotprod);
        let all = matrix.into_iter().chain(dot).chain([NeonByteDots::Widening]);
        all.map(|byte_dots| Self { byte_dots })
    }
}

#[cfg(target_arch = "aarch64")]
impl Dotprod {
    /// Returns the proof if this processor has the instructions.
    pub(crate) fn detect() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("dotprod").then_some(Self(()))
    }
}

#[cfg(target_arch = "aarch64")]
impl I8mm {
    /// Returns the proof if this processor has the instructions.
    pub(crate) fn detect() -> Option<Self> {
        let dotprod = Dotprod::detect()?;
        std::arch::is_aarch64_feature_detected!("i8mm").then_some(Self(dotprod))
    }

    /// Returns the proof that dot products are present.
    pub(crate) const fn dotprod(self) -> Dotprod {
        self.0
    }
}

impl Isa {
    /// Returns every instruction set present, the widest first; `Scalar` is always there.
    #[must_use]
    pub fn all_present() -> Vec<Self> {
        let mut present = Vec::new();
        #[cfg(target_arch = "x86_64")]
        present.extend(Avx512::detect().map(Self::Avx512));
        #[cfg(target_arch = "x86_64")]
        present.extend(Avx2::all_present().map(Self::Avx2));
        #[cfg(target_arch = "aarch64")]
        present.extend(Neon::all_present().map(Self::Neon));
        present.push(Self::Scalar);
        present
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
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(Avx2 { vnni: None }) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(Avx2 { vnni: Some(_) }) => "avx-vnni",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => "avx512",
            #[cfg(target_arch = "aarch64")]
            Self::Neon(neon) => match neon.byte_dots {
                NeonByteDots::Widening => "neon",
                NeonByteDots::Dotprod(_) => "neon-dotprod",
                NeonByteDots::I8mm(_) => "neon-i8mm",
            },
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

    #[test]
    fn every_64_bit_arm_processor_has_neon_and_wider_products_come_before() {
        let names: Vec<_> = Isa::all_present().into_iter().map(Isa::name).collect();
        let arm = ["neon-i8mm", "neon-dotprod", "neon", "scalar"];
        if cfg!(target_arch = "aarch64") {
            assert!(names.len() >= 2 && arm.ends_with(&names));
        } else {
            assert!(!names.iter().any(|name| name.starts_with("neon")));
        }
    }
}
