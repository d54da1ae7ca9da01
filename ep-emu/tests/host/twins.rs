//! The host's lowest layer against the device's: the same functions, the same numbers.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use ep_emu::mutant::{DEVICE_LIBRARY, Mutant};
use ep_emu::{Build, Launch, Source};

use crate::support::{alloc, compile, launch, source, words, world};

/// Every function of a header with its result and parameters, white space folded.
fn functions(path: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("templates").join(path);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let folded = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let heads = folded.split("__device__ __forceinline__ ").skip(1);
    heads.map(|head| head.split(" {").next().unwrap_or(head).to_owned()).collect()
}

#[test]
fn host_and_device_have_the_same_functions() {
    let (host, device) = (functions("host/ep/ptx.cuh"), functions("device/ep/ptx.cuh"));
    let missing: Vec<_> = device.difference(&host).collect();
    let surplus: Vec<_> = host.difference(&device).collect();
    assert!(missing.is_empty(), "functions without a host twin: {missing:#?}");
    assert!(surplus.is_empty(), "host functions that the device lacks: {surplus:#?}");
}

#[test]
fn every_planted_bug_fits_the_device_library() {
    let mutants = Mutant::parse(DEVICE_LIBRARY).unwrap_or_else(|error| panic!("{error}"));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("templates/device/ep");
    let header = |name: &str| {
        let text = fs::read_to_string(folder.join(name)).unwrap_or_else(|_| panic!("no {name}"));
        (format!("ep/{name}"), text)
    };
    let names: BTreeSet<String> = mutants.iter().map(|mutant| mutant.file.clone()).collect();
    let headers = names.iter().map(|file| header(file.trim_start_matches("ep/"))).collect();
    let source = Source { headers, ..Source::default() };
    let broken: Vec<String> = mutants
        .iter()
        .filter_map(|mutant| mutant.plant(&source).err())
        .map(|error| error.to_string())
        .collect();
    assert!(broken.is_empty(), "{broken:#?}");
    let real = mutants.iter().filter(|mutant| mutant.equivalent.is_none()).count();
    assert!(real >= 32, "only {real} bugs that can be found");
}

/// What `numbers.cu` gives for `count` floats from the bits `first` on.
fn converted(first: u32, step: u32, count: u32) -> Vec<u32> {
    let program = compile(&source("numbers.cu", &[]), Build::Plain);
    let mut world = world(1, 1);
    let out = alloc(&mut world, 0, 4 * count as usize, "out");
    let mut args = out.0.to_le_bytes().to_vec();
    for word in [first, step, count, 0] {
        args.extend_from_slice(&word.to_le_bytes());
    }
    let launch = Launch { args, ..launch(&program, "numbers", 1, 32) };
    world.run(vec![vec![launch]]).unwrap_or_else(|failure| panic!("{failure}"));
    words(&world, out, count as usize)
}

/// The value of an e4m3 code that is no NaN.
fn e4m3_value(code: u32) -> f64 {
    let sign = if code & 0x80 != 0 { -1.0 } else { 1.0 };
    let (exponent, mantissa) = ((code >> 3 & 15) as i32, f64::from(code & 7));
    let magnitude = match exponent {
        0 => mantissa / 8.0 * 2f64.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7),
    };
    sign * magnitude
}

/// The nearest code of a table, ties to the even one, by comparing with every code.
fn nearest_e4m3(value: f32) -> u32 {
    if value.is_nan() {
        return 0x7f;
    }
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    let magnitude = f64::from(value.abs()).min(448.0);
    let distance = |code: &u32| (e4m3_value(*code) - magnitude).abs();
    let best =
        (0..0x7f).min_by(|a, b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1))));
    sign | best.expect("codes")
}

/// The nearest bf16, ties to even, in arithmetic on the value.
fn nearest_bf16(value: f32) -> u32 {
    if value.is_nan() {
        return 0x7fff;
    }
    let below = value.to_bits() & 0xffff_0000;
    let above = below.wrapping_add(0x1_0000);
    let rest = value.to_bits() & 0xffff;
    let up = rest > 0x8000 || (rest == 0x8000 && below & 0x1_0000 != 0);
    (if up { above } else { below }) >> 16
}

#[test]
fn conversions_round_to_nearest_even() {
    // A prime step reaches all exponents and mantissa bits; the second range all e4m3 ties.
    for (first, step, count) in [(0, 65_537, 65_535), (0x3a80_0000, 0x1_0000, 3_200)] {
        for (index, word) in converted(first, step, count).into_iter().enumerate() {
            let value = f32::from_bits(first.wrapping_add(index as u32 * step));
            assert_eq!(word >> 16, nearest_e4m3(value), "e4m3 of {value:e}");
            assert_eq!(word & 0xffff, nearest_bf16(value), "bf16 of {value:e}");
        }
    }
}
