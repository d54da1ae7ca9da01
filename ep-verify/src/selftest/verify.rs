//! What a call left on a rank, read back and compared.

use super::{POISON, Selftest};
use crate::findings::Findings;
use crate::oracle::{
    Arrival, Differences, RowReader, compare_bytes, compare_sums_of_sums, half_step_bf16,
};
use ep_runtime::bf16::bf16_to_f32;
use ep_runtime::buffer::{Handle, Received};
use ep_runtime::error::CallError;

fn words_of(arrival: &Arrival) -> String {
    format!("rank {} token {}", arrival.source, arrival.token)
}

fn i32_bytes(values: impl IntoIterator<Item = i32>) -> Vec<u8> {
    values.into_iter().flat_map(i32::to_le_bytes).collect()
}

impl Selftest {
    /// The counts that the host sees, and the tables behind them.
    pub(super) fn verify_counts(&self, handle: &Handle) -> Result<Findings, CallError> {
        let rank = handle.rank();
        let (oracle, options) = (&self.oracle, &self.case.options);
        let mut findings = Findings::default();
        let counts = handle.counts()?;
        let mut differences = Differences::default();
        let want = oracle.arrivals(rank).len();
        differences.note(counts.received == want, || format!("{}, not {want}", counts.received));
        findings.add(format!("rank {rank} received"), differences);
        let local = options.local_experts(self.group.ranks());
        let want = oracle.received_per_expert(rank, local, options.alignment);
        let mut differences = Differences::default();
        for (expert, (got, want)) in counts.per_expert.iter().zip(&want).enumerate() {
            let equal = *got as i64 == i64::from(*want);
            differences.note(equal, || format!("expert {expert}: {got}, not {want}"));
        }
        findings.add(format!("rank {rank} received_per_expert"), differences);
        let tokens = self.case.tokens[rank];
        let ranks = self.group.ranks();
        let in_rank = (0..tokens).flat_map(|token| {
            (0..ranks).map(move |dest| u8::from(oracle.goes_to(rank, token, dest)))
        });
        let tables = handle.layout()?;
        let wanted = [
            ("rank_prefix", tables.rank_prefix.address(), i32_bytes(oracle.rank_prefix())),
            (
                "tokens_per_expert",
                tables.tokens_per_expert.address(),
                i32_bytes(oracle.tokens_per_expert(rank)),
            ),
            ("in_rank", tables.in_rank.address(), in_rank.collect()),
        ];
        for (name, address, want) in wanted.into_iter().filter(|(_, address, _)| *address != 0) {
            let mut got = vec![0; want.len()];
            self.group.backend().read(rank, address, &mut got)?;
            let width = if name == "in_rank" { ranks } else { 4 };
            let rows = RowReader::dense(&got, width);
            let found = compare_bytes(name, rows, want.len() / width, |row| {
                (&want[row * width..(row + 1) * width], format!("entry {row}"))
            });
            findings.add(format!("rank {rank} {name}"), found);
        }
        Ok(findings)
    }

    /// Every byte of an output: rows, scales and, for a fresh dispatch, indices and weights.
    pub(super) fn verify_rows(
        &self,
        call: &str,
        received: &Received,
        fresh: bool,
    ) -> Result<Findings, CallError> {
        let rank = received.rank();
        let (options, oracle) = (&self.case.options, &self.oracle);
        let arrivals = oracle.arrivals(rank);
        let mut findings = Findings::default();
        let width = options.hidden * options.payload.value_bytes() as usize;
        let x = received.x()?;
        let stride = x.row_stride as usize * options.payload.value_bytes() as usize;
        let found = self.compare_rows("recv_x", rank, x.address, stride, width, &self.host.x)?;
        findings.add(format!("{call} rank {rank} recv_x"), found);
        let scales = options.payload.scales(options.hidden);
        let width = scales * options.payload.scale_bytes() as usize;
        if width > 0 {
            let at = received.scale()?.address;
            let found = self.compare_rows("scale", rank, at, width, width, &self.host.scale)?;
            findings.add(format!("{call} rank {rank} scale"), found);
        }
        if fresh {
            let want = arrivals.iter().flat_map(|row| oracle.local_experts_of(rank, *row));
            let want: Vec<u8> = want.flat_map(i64::to_le_bytes).collect();
            let at = received.topk_idx()?;
            let found = self.compare_small("recv_topk_idx", rank, at, 8 * options.topk, &want)?;
            findings.add(format!("{call} rank {rank} recv_topk_idx"), found);
            let found = self.verify_fill(rank, at)?;
            findings.add(format!("{call} rank {rank} recv_topk_idx beyond the rows"), found);
        }
        if fresh && options.weights {
            let weights = arrivals.iter().flat_map(|row| oracle.local_weights_of(rank, *row));
            let want: Vec<u8> = weights.flat_map(f32::to_le_bytes).collect();
            let at = received.topk_weights()?;
            let found =
                self.compare_small("recv_topk_weights", rank, at, 4 * options.topk, &want)?;
            findings.add(format!("{call} rank {rank} recv_topk_weights"), found);
        }
        Ok(findings)
    }

    /// Whether the first row behind those that came holds what it held before the call, in an output
    /// that was poisoned and not written since.
    pub(super) fn verify_untouched(&self, received: &Received) -> Result<Findings, CallError> {
        let (rank, options) = (received.rank(), &self.case.options);
        let came = self.oracle.arrivals(rank).len();
        let mut findings = Findings::default();
        if came == options.capacity(self.group.ranks()) {
            return Ok(findings);
        }
        let width = options.hidden * options.payload.value_bytes() as usize;
        let x = received.x()?;
        let scales =
            options.payload.scales(options.hidden) * options.payload.scale_bytes() as usize;
        let scale = received.scale().map_or(0, |scale| scale.address);
        let stride = x.row_stride as usize * options.payload.value_bytes() as usize;
        for (name, address, stride, width) in
            [("recv_x", x.address, stride, width), ("scale", scale, scales, scales)]
        {
            if width == 0 {
                continue;
            }
            let mut row = vec![0; width];
            self.group.backend().read(rank, address + (came * stride) as u64, &mut row)?;
            let mut found = Differences::default();
            let untouched = row.iter().all(|byte| *byte == POISON);
            found.note(untouched, || format!("{name} row {came} was written, it holds no row"));
            findings.add(format!("rank {rank} {name} behind the rows"), found);
        }
        Ok(findings)
    }

    /// Compares the rows of an output with the rows of their sources.
    fn compare_rows(
        &self,
        name: &str,
        rank: usize,
        address: u64,
        stride: usize,
        width: usize,
        sources: &[Vec<u8>],
    ) -> Result<Differences, CallError> {
        let arrivals = self.oracle.arrivals(rank);
        let mut got = vec![0; arrivals.len() * stride];
        self.group.backend().read(rank, address, &mut got)?;
        let reader = RowReader { bytes: &got, stride, width };
        Ok(compare_bytes(name, reader, arrivals.len(), |index| {
            let row = &arrivals[index];
            let source = &sources[row.source][row.token * width..(row.token + 1) * width];
            (source, words_of(row))
        }))
    }

    /// Behind the rows that came, experts are -1 up to the end of the output.
    fn verify_fill(&self, rank: usize, at: u64) -> Result<Differences, CallError> {
        let (options, came) = (&self.case.options, self.oracle.arrivals(rank).len());
        let width = 8 * options.topk;
        let left = options.capacity(self.group.ranks()).saturating_sub(came);
        let mut got = vec![0; left * width];
        self.group.backend().read(rank, at + (came * width) as u64, &mut got)?;
        let want = vec![0xff; width];
        let rows = RowReader::dense(&got, width);
        Ok(compare_bytes("row behind the last", rows, left, |_| (&want, "fill".to_string())))
    }

    fn compare_small(
        &self,
        name: &str,
        rank: usize,
        address: u64,
        width: usize,
        want: &[u8],
    ) -> Result<Differences, CallError> {
        let arrivals = self.oracle.arrivals(rank);
        let mut got = vec![0; want.len()];
        self.group.backend().read(rank, address, &mut got)?;
        Ok(compare_bytes(name, RowReader::dense(&got, width), arrivals.len(), |index| {
            (&want[index * width..(index + 1) * width], words_of(&arrivals[index]))
        }))
    }

    /// The sums of a combine against sums in f64; `as_sent`: of rows that nobody has changed.
    pub(super) fn verify_sums(&self, rank: usize, as_sent: bool) -> Result<Findings, CallError> {
        let (options, data) = (&self.case.options, self.rank(rank)?);
        let (tokens, hidden) = (self.case.tokens[rank], options.hidden);
        let mut got = vec![0; tokens * hidden * 2];
        data.combined.read(0, &mut got)?;
        let mut sums = Differences::default();
        for token in 0..tokens {
            let terms = self.terms(rank, token, as_sent);
            let mut want = vec![0f64; hidden];
            let mut magnitude = vec![0f64; hidden];
            for row in &terms {
                for (column, pair) in row.chunks_exact(2).enumerate() {
                    let value = f64::from(bf16_to_f32(u16::from_le_bytes([pair[0], pair[1]])));
                    want[column] += value;
                    magnitude[column] += value.abs();
                }
            }
            let row = &got[token * hidden * 2..(token + 1) * hidden * 2];
            let rounded = self.rounded(rank, token, as_sent);
            let sum = (&magnitude[..], terms.len());
            sums.merge(compare_sums_of_sums("combined", token, row, &want, sum, &rounded));
        }
        let mut findings = Findings::default();
        findings.add(format!("combine rank {rank} combined"), sums);
        if options.weights {
            findings.add(format!("combine rank {rank} weights"), self.verify_weights(rank)?);
        }
        Ok(findings)
    }

    /// What the sums of the ranks of a node may lose in each column where they are rounded. Empty: there is one node.
    fn rounded(&self, rank: usize, token: usize, as_sent: bool) -> Vec<f64> {
        let (nodes, hidden) = (self.group.nodes(), self.case.options.hidden);
        if nodes == 1 {
            return Vec::new();
        }
        let each = self.group.ranks() / nodes;
        let mut lost = vec![0f64; hidden];
        for node in 0..nodes {
            let dests = node * each..(node + 1) * each;
            let rows: Vec<&[u8]> =
                dests.filter_map(|dest| self.term(rank, token, dest, as_sent)).collect();
            for (column, lost) in lost.iter_mut().enumerate().filter(|_| rows.len() > 1) {
                let values = rows.iter().map(|row| {
                    let bits = u16::from_le_bytes([row[2 * column], row[2 * column + 1]]);
                    f64::from(bf16_to_f32(bits))
                });
                let (sum, magnitude) =
                    values.fold((0.0, 0.0), |(sum, all), value| (sum + value, all + value.abs()));
                let in_fp32 = f64::from(f32::EPSILON) * magnitude * rows.len() as f64;
                *lost += half_step_bf16(sum.abs() + in_fp32) + in_fp32;
            }
        }
        lost
    }

    /// The bf16 row that a token's sum gets from a rank.
    fn term(&self, rank: usize, token: usize, dest: usize, as_sent: bool) -> Option<&[u8]> {
        let width = self.case.options.hidden * 2;
        let row = self.oracle.position(rank, token, dest)?;
        match as_sent {
            true => self.host.x[rank].get(token * width..(token + 1) * width),
            false => self.host.made[dest].get(row * width..(row + 1) * width),
        }
    }

    /// The bf16 rows that a token's sum consists of: those of its ranks in order, and its biases.
    fn terms(&self, rank: usize, token: usize, as_sent: bool) -> Vec<&[u8]> {
        let width = self.case.options.hidden * 2;
        let ranks = 0..self.group.ranks();
        let rows = ranks.filter_map(|dest| self.term(rank, token, dest, as_sent));
        let biases = self.host.biases[rank].iter();
        let biases = biases.filter_map(|bias| bias.get(token * width..(token + 1) * width));
        rows.chain(biases).collect()
    }

    fn verify_weights(&self, rank: usize) -> Result<Differences, CallError> {
        let topk = self.case.options.topk;
        let mut got = vec![0; self.case.tokens[rank] * topk * 4];
        self.rank(rank)?.combined_weights.read(0, &mut got)?;
        let real = |bytes: &[u8], index: usize| {
            let word = bytes.get(4 * index..4 * index + 4).map(|b| [b[0], b[1], b[2], b[3]]);
            word.map_or(f32::NAN, f32::from_le_bytes)
        };
        let mut found = Differences::default();
        for (index, _) in got.chunks_exact(4).enumerate() {
            let (token, k) = (index / topk, index % topk);
            let rows = (0..self.group.ranks())
                .filter_map(|dest| Some((dest, self.oracle.position(rank, token, dest)?)));
            let terms = rows
                .map(|(dest, row)| f64::from(real(&self.host.made_weights[dest], row * topk + k)));
            let (want, count) = terms.fold((0.0, 0), |(sum, count), term| (sum + term, count + 1));
            let have = f64::from(real(&got, index));
            let allowed = want * f64::from(count) * 2f64.powi(-23);
            found.note((have - want).abs() <= allowed, || {
                format!("combined_weights token {token} entry {k}: {have}, not {want}")
            });
        }
        Ok(found)
    }
}
