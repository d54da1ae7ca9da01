//! The border to compiled kernels: the types of `emu.h` and the table of `shim.cpp`.

/// `EmuBlock`.
#[repr(C)]
pub(crate) struct BlockView {
    pub(crate) index: [u32; 3],
    pub(crate) size: [u32; 3],
    pub(crate) grid: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) shared: *mut u8,
}

/// `EmuLane`.
#[repr(C)]
pub(crate) struct LaneView {
    pub(crate) thread: [u32; 3],
    pub(crate) lane: u32,
    pub(crate) block: *const BlockView,
}

/// An address in kernel code.
pub(crate) type Pc = usize;

/// `EmuTable`: what a kernel library calls.
#[repr(C)]
pub(crate) struct Table {
    pub(crate) warp: extern "C" fn(u32, u32, u64, i32, i32, Pc) -> u64,
    pub(crate) barrier: extern "C" fn(i32, i32, i32, Pc),
    pub(crate) load: extern "C" fn(usize, u32, u32, Pc) -> u64,
    pub(crate) store: extern "C" fn(usize, u64, u32, u32, Pc),
    pub(crate) atomic: extern "C" fn(u32, usize, u64, u64, u32, u32, Pc) -> u64,
    pub(crate) fence: extern "C" fn(u32, Pc),
    pub(crate) fence_proxy: extern "C" fn(u32, Pc),
    pub(crate) read_only: extern "C" fn(usize, u32, Pc),
    pub(crate) mbarrier_init: extern "C" fn(usize, u32, Pc),
    pub(crate) mbarrier_arrive: extern "C" fn(usize, u32, Pc),
    pub(crate) mbarrier_test: extern "C" fn(usize, u32, Pc) -> i32,
    pub(crate) bulk_load: extern "C" fn(usize, usize, u32, usize, Pc),
    pub(crate) bulk_store: extern "C" fn(usize, usize, u32, Pc),
    pub(crate) bulk_commit: extern "C" fn(Pc),
    pub(crate) bulk_wait: extern "C" fn(u32, i32, Pc),
    pub(crate) shared: extern "C" fn(u32, Pc) -> usize,
    pub(crate) last_kernel: extern "C" fn(),
    pub(crate) next_kernel: extern "C" fn(),
    pub(crate) clock: extern "C" fn() -> u64,
    pub(crate) note_wait: extern "C" fn(u32, u32, u32, u32, i32, i32, u32, u32),
    pub(crate) note_met: extern "C" fn(),
    pub(crate) trap: extern "C" fn(*const std::ffi::c_char, Pc),
    pub(crate) plain: extern "C" fn(usize, u64, i32, Pc),
    pub(crate) sanitizer: extern "C" fn(*const std::ffi::c_char, usize, u64, i32, Pc),
}

/// `emu_bind`.
pub(crate) type Bind = unsafe extern "C" fn(*const Table, u64, u64) -> *mut *const LaneView;
/// `emu_base`.
pub(crate) type Base = unsafe extern "C" fn() -> usize;
/// `emu_poison`.
pub(crate) type Poison = unsafe extern "C" fn(usize, usize, i32);
/// `emu_run_<kernel>`.
pub(crate) type Run = unsafe extern "C" fn(*const u8);

/// The order of a strong access.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Qualifiers(pub(crate) u32);

impl Qualifiers {
    /// Whether it acquires.
    pub(crate) fn acquires(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether it releases.
    pub(crate) fn releases(self) -> bool {
        self.0 & 2 != 0
    }

    /// Whether it releases what was over when its launch began.
    pub(crate) fn releases_entry(self) -> bool {
        self.0 & 4 != 0
    }

    /// Its scope.
    pub(crate) fn scope(self) -> Scope {
        Scope::of(self.0 >> 4)
    }
}

/// Who an ordered access orders itself with; wider ones compare greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    /// The block.
    Cta,
    /// The rank.
    Gpu,
    /// Every rank.
    Sys,
}

impl Scope {
    /// The scope of `emu.h`'s number.
    pub(crate) fn of(number: u32) -> Self {
        match number {
            0 => Self::Cta,
            1 => Self::Gpu,
            _ => Self::Sys,
        }
    }
}

/// `EMU_PROXY_GLOBAL`.
pub(crate) const PROXY_GLOBAL: u32 = 1;
/// `EMU_PROXY_SHARED`.
pub(crate) const PROXY_SHARED: u32 = 2;
/// `EMU_PROXY_MBARRIER`.
pub(crate) const PROXY_MBARRIER: u32 = 4;
