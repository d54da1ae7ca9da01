//! Quantizes rows while they are sent, in a format that the language does not have: two 4-bit values in a byte
//! (e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and a sign), and an e4m3 scale for each 16 values.
//!
//! Four user functions implement the format; the language moves their results.

use ep_runtime::calls::CallOptions;
use ep_runtime::error::CallError;
use ep_runtime::group::Group;
use ep_runtime::pipeline;
use ep_runtime::tensor::{Bf16, DeviceTensor};

use nvfp4_dispatch::{Args, Inputs, Options, Shape};

pipeline! {
    /// Quantizes each token's row and sends it to the rank that the token names.
    pub pipeline Nvfp4Dispatch {
        shape {
            ranks: 1..=64, hidden: 32..=8192 step 32, max_tokens: 1..=1024,
            let pairs = hidden / 2, let blocks = hidden / 16,
        }
        tune { stripes: 16 in [4, 16, 64] }
        size tokens in 0..=max_tokens;
        input x: bf16[tokens, hidden], to: i32[tokens] in -1..ranks;
        // The rows that this rank sends.
        table codes: u8[tokens, pairs], scales: u8[tokens, blocks];
        // The rows that it receives: those of each source in any order, and the token of each row.
        output
            recv_codes: u8[ranks * max_tokens, pairs], recv_scales: u8[ranks * max_tokens, blocks],
            sent_as: i32[ranks * max_tokens], count: i32[ranks];

        cuda fn greatest(a: bf16, b: bf16, c: bf16, d: bf16) -> f32 = r"
            __device__ inline float greatest(ep::bf16 a, ep::bf16 b, ep::bf16 c, ep::bf16 d) {
                float first = fmaxf(fabsf(ep::to_float(a)), fabsf(ep::to_float(b)));
                return fmaxf(first, fmaxf(fabsf(ep::to_float(c)), fabsf(ep::to_float(d))));
            }";
        // The e4m3 code nearest to a sixth of the greatest magnitude, at least the smallest normal number.
        cuda fn scale(a: f32, b: f32, c: f32, d: f32) -> u8 = r"
            __device__ inline ep::u8 scale(float a, float b, float c, float d) {
                float wanted = fmaxf(fmaxf(a, b), fmaxf(c, d)) / 6.0f;
                ep::i32 code = 8;
                float value = 0.015625f;
                // The next code begins half a step further.
                while (code < 126 && wanted > value * (1.0f + 0.5f / float(8 + code % 8))) {
                    value = value * (1.0f + 1.0f / float(8 + code % 8));
                    code = code + 1;
                }
                return ep::u8(code);
            }";
        cuda fn value_of(scale: u8) -> f32 = r"
            __device__ inline float value_of(ep::u8 scale) {
                float value = 0.001953125f * float(8 + scale % 8);
                for (ep::i32 left = scale / 8; left > 1; left = left - 1) {
                    value = value * 2.0f;
                }
                return value;
            }";
        cuda fn code(v: bf16, scale: f32) -> i32 = r"
            __device__ inline ep::i32 code(ep::bf16 v, float scale) {
                float size = fabsf(ep::to_float(v)) / scale;
                ep::i32 code = (size > 0.25f) + (size >= 0.75f) + (size > 1.25f) + (size >= 1.75f);
                code = code + (size > 2.5f) + (size >= 3.5f) + (size > 5.0f);
                return ep::to_float(v) < 0.0f ? code + 8 : code;
            }";

        message Row { row codes: u8[pairs], scales: u8[blocks], token: i32 }
        channel rows: slots<Row> over nvlink from Send to Take per all {
            slot: [source, arrival: max_tokens], epochs: 2,
        };

        role Send on even blocks, 8 warps, warps shared by token {
            for token in stripe {
                for b in blocks {
                    let first = greatest(x[token, 16 * b], x[token, 16 * b + 1], x[token, 16 * b + 2], x[token, 16 * b + 3]);
                    let second = greatest(x[token, 16 * b + 4], x[token, 16 * b + 5], x[token, 16 * b + 6], x[token, 16 * b + 7]);
                    let third = greatest(x[token, 16 * b + 8], x[token, 16 * b + 9], x[token, 16 * b + 10], x[token, 16 * b + 11]);
                    let last = greatest(x[token, 16 * b + 12], x[token, 16 * b + 13], x[token, 16 * b + 14], x[token, 16 * b + 15]);
                    record scales[token, b] = scale(first, second, third, last);
                }
                for p in pairs {
                    let by = value_of(scales[token, p / 8]);
                    record codes[token, p] = code(x[token, 2 * p], by) + 16 * code(x[token, 2 * p + 1], by);
                }
                if to[token] >= 0 {
                    push rows[to[token]] { codes: codes[token], scales: scales[token], token: token };
                }
            }
            close rows;
        }
        role Take on odd blocks, 8 warps, warps shared by source {
            store count[source] = rows[source].count;
            for message in rows[source] at source * max_tokens {
                store recv_codes[message.row] = message.codes;
                store recv_scales[message.row] = message.scales;
                store sent_as[message.row] = message.token;
            }
        }
    }
}

/// A block of values, and the values that their codes stand for.
const VALUES: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.2, -0.5, -1.1, -1.5, -2.4, -3.0, -5.0, -6.0];
const LEFT: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];
const SHAPE: Shape = Shape { hidden: 64, max_tokens: 4, tokens: 3 };

/// By what the values of a block are multiplied.
fn factor(rank: usize, token: usize, block: usize) -> f32 {
    [0.25, 1.0, 3.0, 8.0][(rank + token + block) % 4]
}

fn row(rank: usize, token: usize, of: &[f32; 16]) -> impl Iterator<Item = f32> + use<'_> {
    (0..SHAPE.hidden).map(move |i| of[i % 16] * factor(rank, token, i / 16))
}

/// The values of a row of codes.
fn decoded(codes: &[u8], scales: &[u8]) -> Vec<f32> {
    let value = |code: u8| {
        let size = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code % 8)];
        if code < 8 { size } else { -size }
    };
    let scale = |code: u8| f32::from(8 + code % 8) * 2f32.powi(i32::from(code / 8) - 10);
    let both = |(at, code): (usize, &u8)| {
        [code % 16, code / 16].map(|code| value(code) * scale(scales[at / 8]))
    };
    codes.iter().enumerate().flat_map(both).collect()
}

fn main() -> Result<(), CallError> {
    run(&Group::on_host(2)?) // With GPUs: Group::on_gpus(2)?
}

/// Makes one call on two ranks: each sends its first token to rank 1, the last to rank 0 and one nowhere.
pub(crate) fn run(group: &Group) -> Result<(), CallError> {
    let kernel = Nvfp4Dispatch::prepare(group, SHAPE, Options::default())?;
    let Shape { hidden, tokens, max_tokens } = SHAPE;
    let mut ranks = Vec::new();
    for rank in group.local() {
        let x = (0..tokens).flat_map(|token| row(rank, token, &VALUES)).map(Bf16::from);
        let x: Vec<Bf16> = x.collect();
        let x = DeviceTensor::from_slice(group, rank, [tokens, hidden], &x)?;
        let to = DeviceTensor::from_slice(group, rank, [tokens], &[1, -1, 0])?;
        ranks.push((rank, Inputs { x, to }, kernel.outputs(rank)?));
    }
    for (rank, inputs, outputs) in &ranks {
        // The handle's tables hold what this rank has sent.
        kernel.launch(*rank, &CallOptions::default(), inputs, outputs, &Args::default())?;
    }
    for (rank, _, outputs) in &ranks {
        group.sync(*rank)?;
        let (codes, scales) = (outputs.recv_codes.read()?, outputs.recv_scales.read()?);
        let (count, sent_as) = (outputs.count.read()?, outputs.sent_as.read()?);
        assert_eq!(count, vec![1; group.ranks()]);
        for source in 0..group.ranks() {
            let at = source * max_tokens;
            let token = if *rank == 0 { 2 } else { 0 };
            assert_eq!(sent_as[at] as usize, token);
            let (codes, scales) = (&codes[at * hidden / 2..], &scales[at * hidden / 16..]);
            let came = decoded(&codes[..hidden / 2], scales);
            assert_eq!(came, row(source, token, &LEFT).collect::<Vec<f32>>());
        }
    }
    Ok(())
}
