//! The resources of a kernel, read from its CUBIN: registers, stack, shared memory, barriers, code size.
//!
//! A CUBIN is an ELF file whose `.nv.info` sections hold small records. NVIDIA documents the tools that
//! print these records but not their format. The values read here equal those of cuobjdump for the versions
//! and architectures that the tests compile.

use std::collections::BTreeMap;
use std::fmt;

use object::LittleEndian as Le;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, SectionHeader, SectionTable, Sym, SymbolTable};

/// The resources that the kernels of one CUBIN need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// The architecture of the code, such as 90.
    pub arch: u32,
    /// Each kernel, in the order of the names.
    pub kernels: Vec<CubinKernel>,
    /// Undefined symbols, such as `vprintf`; emitted code has none.
    pub undefined: Vec<String>,
}

/// The resources that one kernel needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CubinKernel {
    /// The name of the kernel in the machine code.
    pub name: String,
    /// Registers per thread.
    pub registers: u32,
    /// Bytes of local memory per thread; not 0 if the kernel spills or has indexed local arrays.
    pub stack: u32,
    /// Bytes of shared memory that the text declares, without the system's part.
    pub static_shared: u32,
    /// Number of named barriers; `None` if the CUBIN does not contain it.
    pub barriers: Option<u32>,
    /// Maximum number of threads in a block; `None` if the text sets no bound.
    pub max_threads: Option<u32>,
    /// Bytes of machine code, including functions that are not inlined.
    pub code: u64,
}

impl fmt::Display for CubinKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CubinKernel { name, registers, stack, static_shared, code, .. } = self;
        write!(f, "{name}: {registers} registers, {stack} bytes of stack, ")?;
        write!(f, "{static_shared} bytes of static shared memory, ")?;
        if let Some(barriers) = self.barriers {
            write!(f, "{barriers} barriers, ")?;
        }
        write!(f, "{code} bytes of code")
    }
}

/// Shared memory that the system takes at the start of every block from sm_90 on.
const SYSTEM_SHARED: u64 = 1024;

// Numbers of the records in `.nv.info`.
const REGISTER_COUNT: u8 = 0x2f;
const FRAME_SIZE: u8 = 0x11;
const MIN_STACK_SIZE: u8 = 0x12;
const MAX_THREADS: u8 = 0x05;
const BARRIER_COUNT: u8 = 0x4c;

/// The mark of a kernel among the functions, in `st_other`.
const ENTRY: u8 = 0x10;

/// The header's `EI_OSABI` of the older layout, in which the flags begin with the architecture.
const OLDER_ABI: u8 = 0x33;

type Header = FileHeader64<Le>;

impl Resources {
    /// Reads `cubin`; the error is a clause.
    pub fn read(cubin: &[u8]) -> Result<Resources, String> {
        let reason = |error: object::read::Error| error.to_string();
        let header = Header::parse(cubin).map_err(reason)?;
        let endian = header.endian().map_err(reason)?;
        if header.e_machine(endian) != elf::EM_CUDA {
            return Err("it is not code for a GPU".to_owned());
        }
        let sections = header.sections(endian, cubin).map_err(reason)?;
        let symbols = sections.symbols(endian, cubin, elf::SHT_SYMTAB).map_err(reason)?;
        let parts = Parts { cubin, endian, sections, symbols };
        let arch = arch(header.e_ident().os_abi.0, header.e_flags(endian).0);
        let global = parts.section(".nv.info").map(records).unwrap_or_default();
        let mut kernels = parts.kernels(&global, arch);
        kernels.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(Resources { arch, kernels, undefined: parts.undefined() })
    }
}

fn arch(abi: u8, flags: u32) -> u32 {
    if abi == OLDER_ABI { flags & 0xff } else { (flags >> 8) & 0xffff }
}

/// The tables of one file.
struct Parts<'a> {
    cubin: &'a [u8],
    endian: Le,
    sections: SectionTable<'a, Header>,
    symbols: SymbolTable<'a, Header>,
}

impl<'a> Parts<'a> {
    fn kernels(&self, global: &[Record<'_>], arch: u32) -> Vec<CubinKernel> {
        let registers = per_symbol(global, REGISTER_COUNT);
        let frames = per_symbol(global, FRAME_SIZE);
        let stacks = per_symbol(global, MIN_STACK_SIZE);
        let mut kernels = Vec::new();
        for (index, symbol) in self.symbols.enumerate() {
            if symbol.st_type() != elf::STT_FUNC || symbol.st_other().0 & ENTRY == 0 {
                continue;
            }
            let Some(name) = self.name(symbol) else { continue };
            let own = self.section(&format!(".nv.info.{name}")).map(records).unwrap_or_default();
            let value = |table: &BTreeMap<u32, u32>| {
                u32::try_from(index.0).ok().and_then(|index| table.get(&index).copied())
            };
            let stack = value(&frames).unwrap_or(0).max(value(&stacks).unwrap_or(0));
            kernels.push(CubinKernel {
                registers: value(&registers).unwrap_or(0),
                stack,
                static_shared: self.static_shared(&name, arch),
                barriers: own.iter().find(|it| it.number == BARRIER_COUNT).map(Record::small),
                max_threads: own.iter().find(|it| it.number == MAX_THREADS).and_then(threads),
                code: self.size(&format!(".text.{name}")),
                name,
            });
        }
        kernels
    }

    fn static_shared(&self, kernel: &str, arch: u32) -> u32 {
        let size = self.size(&format!(".nv.shared.{kernel}"));
        let system = if arch >= 90 { SYSTEM_SHARED } else { 0 };
        u32::try_from(size.saturating_sub(system)).unwrap_or(u32::MAX)
    }

    fn undefined(&self) -> Vec<String> {
        let missing =
            self.symbols.iter().filter(|symbol| symbol.st_shndx(self.endian) == elf::SHN_UNDEF);
        let mut names: Vec<String> = missing
            .filter_map(|symbol| self.name(symbol))
            .filter(|name| !name.is_empty() && !name.starts_with(".nv.reservedSmem."))
            .collect();
        names.sort();
        names.dedup();
        names
    }

    fn name(&self, symbol: &elf::Sym64<Le>) -> Option<String> {
        let name = self.symbols.symbol_name(self.endian, symbol).ok()?;
        Some(String::from_utf8_lossy(name).into_owned())
    }

    fn section(&self, name: &str) -> Option<&'a [u8]> {
        let (_, section) = self.sections.section_by_name(self.endian, name.as_bytes())?;
        section.data(self.endian, self.cubin).ok()
    }

    fn size(&self, name: &str) -> u64 {
        let section = self.sections.section_by_name(self.endian, name.as_bytes());
        section.map_or(0, |(_, section)| section.sh_size(self.endian))
    }
}

/// One record of a `.nv.info` section.
struct Record<'a> {
    number: u8,
    bytes: &'a [u8],
}

impl Record<'_> {
    fn word(&self, index: usize) -> Option<u32> {
        let bytes = self.bytes.get(index * 4..index * 4 + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }

    /// The value of a record without a length: one or two bytes.
    fn small(&self) -> u32 {
        u32::from(*self.bytes.first().unwrap_or(&0))
    }
}

/// Splits a section into its records; a damaged tail is dropped.
fn records(mut bytes: &[u8]) -> Vec<Record<'_>> {
    const WITH_LENGTH: u8 = 4;
    let mut records = Vec::new();
    while let [form, number, low, high, rest @ ..] = bytes {
        let value = &bytes[2..4];
        bytes = rest;
        if *form != WITH_LENGTH {
            records.push(Record { number: *number, bytes: value });
            continue;
        }
        let length = usize::from(u16::from_le_bytes([*low, *high]));
        let Some((payload, rest)) = rest.split_at_checked(length) else { break };
        records.push(Record { number: *number, bytes: payload });
        bytes = rest;
    }
    records
}

/// The records `{symbol, value}` of one number.
fn per_symbol(records: &[Record<'_>], number: u8) -> BTreeMap<u32, u32> {
    let matching = records.iter().filter(|record| record.number == number);
    matching.filter_map(|record| Some((record.word(0)?, record.word(1)?))).collect()
}

fn threads(record: &Record<'_>) -> Option<u32> {
    Some(record.word(0)?.saturating_mul(record.word(1)?).saturating_mul(record.word(2)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_records_of_both_forms() {
        let bytes = [3, 0x4c, 6, 0, 4, 0x2f, 8, 0, 1, 0, 0, 0, 32, 0, 0, 0, 4, 0x11, 200, 0, 1];
        let records = records(&bytes);
        assert_eq!(records.len(), 2);
        assert_eq!(records[0].small(), 6);
        assert_eq!(per_symbol(&records, REGISTER_COUNT), BTreeMap::from([(1, 32)]));
    }

    #[test]
    fn reads_the_architecture_of_both_layouts() {
        assert_eq!(arch(OLDER_ABI, 0x0050_0550), 80);
        assert_eq!(arch(0x41, 0x0600_5a04), 90);
        assert_eq!(arch(0x41, 0x0600_7802), 120);
    }

    #[test]
    fn refuses_what_is_no_cubin() {
        assert!(Resources::read(b"").is_err());
        assert!(Resources::read(b"not an ELF file at all").is_err());
        let mut elf = vec![0u8; 64];
        elf[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1]);
        assert!(Resources::read(&elf).is_err());
    }
}
