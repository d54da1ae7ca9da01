//! Shapes and settings of buffers under test: small stripes, units and rings, so that few rows show what
//! many do.

use ep_runtime::buffer::{BufferOptions, Setting, Via};

use crate::oracle::Random;

/// Another shape with the payload and the way of `like`; some of these no plan takes.
pub fn random_shape(like: &BufferOptions, seed: u64) -> BufferOptions {
    const HIDDEN: [usize; 8] = [128, 144, 256, 1024, 1040, 2880, 4096, 7168];
    let mut random = Random::new(seed << 8 | 1);
    let mut below = |usual: usize, rare: usize| {
        let bound = if random.chance(0.25) { rare } else { usual };
        random.below(bound)
    };
    let hidden = HIDDEN[below(4, HIDDEN.len())];
    let (topk, experts) = (1 + below(8, 32), 1 + below(24, 200));
    // About as much work for every shape.
    let tokens = if hidden > 2000 { below(3, 6) } else { below(8, 40) };
    let mut options = BufferOptions { hidden, topk, experts, tokens, ..like.clone() };
    options.weights = random.chance(0.8);
    options.biases = random.below(3);
    if like.via == Via::Ring {
        let depth = 16_usize << random.below(3);
        let most_chunk = depth.ilog2() as usize;
        let chunk = 1_usize << random.below(most_chunk);
        let stripes = [4, 6, 8, 12][random.below(4)];
        options.settings = ring_settings(&options, stripes, depth, chunk);
    } else if random.chance(0.5) {
        // Units of few tokens, so that stripes have several.
        options.settings = unit_settings(&options, [4, 8][random.below(2)], 1);
    }
    options
}

/// The settings of `options`, with `stripes` stripes that are sent in units of `kib` KiB.
pub fn unit_settings(options: &BufferOptions, stripes: usize, kib: usize) -> Vec<Setting> {
    let mut settings = options.settings.clone();
    settings.push(setting("nvl-dispatch", "stripes", stripes));
    settings.push(setting("nvl-dispatch", "unit", kib));
    settings
}

/// The settings of `options`, with rings of `stripes` times `depth` slots.
pub fn ring_settings(
    options: &BufferOptions,
    stripes: usize,
    depth: usize,
    chunk: usize,
) -> Vec<Setting> {
    let mut own = options.clone();
    // The stripes of a combine are those of its dispatch.
    own.settings.push(setting("nvl-dispatch", "stripes", stripes));
    set_tune(&mut own, "depth", depth);
    set_tune(&mut own, "chunk", chunk);
    own.settings
}

/// Sets a tune of the pipelines that move rows of such a buffer.
pub fn set_tune(options: &mut BufferOptions, name: &str, value: usize) {
    let one_launch = (options.one_launch == Some(true)).then_some("decode-dispatch");
    for pipeline in ["nvl-dispatch", "nvl-combine"].into_iter().chain(one_launch) {
        options.settings.push(setting(pipeline, name, value));
    }
}

fn setting(pipeline: &str, name: &str, value: usize) -> Setting {
    let (pipeline, name) = (pipeline.to_string(), name.to_string());
    Setting { pipeline, name, value: value.to_string() }
}
