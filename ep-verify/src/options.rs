//! Shapes and tunes of buffers under test: small stripes, units and rings, so that few rows show what
//! many do.

use ep_runtime::buffer::{BufferOptions, BufferTunes, Via};

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
        let depth = 16_i64 << random.below(3);
        let most_chunk = depth.ilog2() as usize;
        let chunk = 1_i64 << random.below(most_chunk);
        let stripes = [4, 6, 8, 12][random.below(4)];
        options.tunes = ring_tunes(&options, stripes, depth, chunk);
    } else if random.chance(0.5) {
        // Units of few tokens, so that stripes have several.
        options.tunes = unit_tunes(&options, [4, 8][random.below(2)], 1);
    }
    options
}

/// The tunes of `options`, with `stripes` stripes that are sent in units of `kib` KiB.
pub fn unit_tunes(options: &BufferOptions, stripes: i64, kib: i64) -> BufferTunes {
    let mut tunes = options.tunes;
    (tunes.nvl_dispatch.stripes, tunes.nvl_dispatch.unit) = (Some(stripes), Some(kib));
    tunes
}

/// The tunes of `options`, with rings of `stripes` times `depth` slots.
pub fn ring_tunes(options: &BufferOptions, stripes: i64, depth: i64, chunk: i64) -> BufferTunes {
    let mut tunes = options.tunes;
    // The stripes of a combine are those of its dispatch.
    tunes.nvl_dispatch.stripes = Some(stripes);
    (tunes.nvl_dispatch.depth, tunes.nvl_dispatch.chunk) = (Some(depth), Some(chunk));
    (tunes.nvl_combine.depth, tunes.nvl_combine.chunk) = (Some(depth), Some(chunk));
    tunes
}

/// Lets all kernels of `options` move rows by so many bytes.
pub fn set_piece(options: &mut BufferOptions, piece: i64) {
    let tunes = &mut options.tunes;
    (tunes.nvl_dispatch.piece, tunes.nvl_combine.piece) = (Some(piece), Some(piece));
    if options.one_launch == Some(true) {
        tunes.decode_dispatch.piece = Some(piece);
    }
}
