//! The GPU architectures that kernels are compiled for.

/// A compile target. Architecture never changes the emitted body: the mover chooses its
/// instructions, the plan counts its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Arch {
    /// A100: no bulk copies, rows move by vector loads and stores.
    Sm80,
    /// H100, H200.
    Sm90a,
    /// B200, GB200.
    Sm100a,
    /// RTX PRO and GeForce Blackwell.
    Sm120a,
}

impl Arch {
    /// Every target, oldest first.
    pub const ALL: [Arch; 4] = [Arch::Sm80, Arch::Sm90a, Arch::Sm100a, Arch::Sm120a];

    /// The name NVRTC takes, such as `sm_90a`.
    pub fn name(self) -> &'static str {
        match self {
            Arch::Sm80 => "sm_80",
            Arch::Sm90a => "sm_90a",
            Arch::Sm100a => "sm_100a",
            Arch::Sm120a => "sm_120a",
        }
    }

    /// The target called `name`.
    pub fn from_name(name: &str) -> Option<Arch> {
        Arch::ALL.into_iter().find(|arch| arch.name() == name)
    }

    /// The target for a device of compute capability `major.minor`, if there is one.
    pub fn for_capability(major: u32, minor: u32) -> Option<Arch> {
        match (major, minor) {
            (8, _) => Some(Arch::Sm80),
            (9, 0) => Some(Arch::Sm90a),
            (10, 0) => Some(Arch::Sm100a),
            (12, 0) => Some(Arch::Sm120a),
            _ => None,
        }
    }

    /// Whether bulk asynchronous copies (TMA) exist.
    pub fn has_tma(self) -> bool {
        self != Arch::Sm80
    }

    /// Whether a kernel can be brought to the SMs while the one before it ends.
    pub fn has_early_launch(self) -> bool {
        self != Arch::Sm80
    }

    /// Shared memory one block may ask for, in bytes.
    pub fn shared_bytes_max(self) -> i64 {
        match self {
            Arch::Sm80 => 163 * 1024,
            Arch::Sm90a | Arch::Sm100a => 227 * 1024,
            Arch::Sm120a => 99 * 1024,
        }
    }
}
