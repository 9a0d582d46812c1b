//! Compiles one generic kernel body for every instruction set and picks one at run time.
//!
//! A generic body is plain Rust over fixed-size lane arrays, marked `#[inline(always)]`; inside a
//! function with wider instructions enabled the compiler turns the lanes into vectors. The
//! operations and their order are those of the body on every instruction set, so results are
//! bit-identical.

/// Defines `$name` as a dispatcher over copies of `$body`, each compiled for one instruction set.
macro_rules! for_each_isa {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:path) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments, reason = "mirrors the generic body")]
        $vis fn $name(isa: $crate::isa::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                $body($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                $body($($arg),*)
            }
            #[cfg(target_arch = "aarch64")]
            #[target_feature(enable = "neon")]
            fn neon($($arg: $ty),*) $(-> $ret)? {
                $body($($arg),*)
            }
            match isa {
                $crate::isa::Isa::Scalar => $body($($arg),*),
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Isa::Avx2(_) => {
                    // SAFETY: the variant holds a proof that AVX2, FMA and F16C are present.
                    unsafe { avx2($($arg),*) }
                }
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Isa::Avx512(_) => {
                    // SAFETY: the variant holds a proof that the AVX-512 sets named above, which
                    // include AVX2, FMA and F16C, are present.
                    unsafe { avx512($($arg),*) }
                }
                #[cfg(target_arch = "aarch64")]
                $crate::isa::Isa::Neon(_) => {
                    // SAFETY: every processor that has this variant has NEON.
                    unsafe { neon($($arg),*) }
                }
            }
        }
    };
}

pub(crate) use for_each_isa;

/// Defines `$name` as a dispatcher over `$body::<V>(proof, …)`, where `V` is the
/// [`crate::lanes::Lanes`] of the instruction set.
macro_rules! for_each_lanes {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:ident $(::<$($generic:ty),*>)?) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments, reason = "mirrors the generic body")]
        $vis fn $name(isa: $crate::isa::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
            fn avx512(proof: $crate::isa::Avx512, $($arg: $ty),*) $(-> $ret)? {
                $body::<$crate::lanes::Avx512Lanes $(, $($generic),*)?>(proof, $($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2(proof: $crate::isa::Avx2, $($arg: $ty),*) $(-> $ret)? {
                $body::<$crate::lanes::Avx2Lanes $(, $($generic),*)?>(proof, $($arg),*)
            }
            #[cfg(target_arch = "aarch64")]
            #[target_feature(enable = "neon")]
            fn neon(proof: $crate::isa::Neon, $($arg: $ty),*) $(-> $ret)? {
                $body::<$crate::lanes::NeonLanes $(, $($generic),*)?>(proof, $($arg),*)
            }
            match isa {
                $crate::isa::Isa::Scalar => {
                    $body::<$crate::lanes::PortableLanes $(, $($generic),*)?>((), $($arg),*)
                }
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Isa::Avx2(proof) => {
                    // SAFETY: the proof shows that AVX2, FMA and F16C are present.
                    unsafe { avx2(proof, $($arg),*) }
                }
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Isa::Avx512(proof) => {
                    // SAFETY: the proof shows that the AVX-512 sets named above, which include
                    // AVX2, FMA and F16C, are present.
                    unsafe { avx512(proof, $($arg),*) }
                }
                #[cfg(target_arch = "aarch64")]
                $crate::isa::Isa::Neon(proof) => {
                    // SAFETY: every processor that has this variant has NEON.
                    unsafe { neon(proof, $($arg),*) }
                }
            }
        }
    };
}

pub(crate) use for_each_lanes;
