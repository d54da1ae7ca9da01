
// Decodes streams of entries, and of doorbells with their records, without carrying anything out.
namespace card {

struct DecodeArgs {
    const Pair* pairs;   // [stream]
    const u32* firsts;   // [stream] number of the first entry
    const u32* entries;  // [stream, entry] 16 words
    const u64* told;     // [stream, entry] a doorbell, then {the next entry to read, the record}
    u32* read;           // [stream, entry] 10 words
    u32* heard;          // [stream, entry] 3 words
    u32 streams, each;
};

}  // namespace card

extern "C" __global__ void card_decode(const __grid_constant__ card::DecodeArgs args) {
    using namespace card;
    const u32 lanes = gridDim.x * blockDim.x;
    for (u32 stream = blockIdx.x * blockDim.x + threadIdx.x; stream < args.streams; stream += lanes) {
        const Pair& pair = args.pairs[stream];
        const u32 first = args.firsts[stream];
        Heard heard{0, first & 0xffffu, first};
        for (u32 i = 0; i < args.each; ++i) {
            const u32 at = stream * args.each + i;
            Entry entry = read_entry(args.entries + at * kWords, pair.number, first + i);
            if (entry.syndrome == kGood) entry.syndrome = check_entry(pair, entry);
            const u32 words[10] = {entry.syndrome, entry.kind, static_cast<u32>(entry.to),
                                   static_cast<u32>(entry.to >> 32), entry.to_key,
                                   static_cast<u32>(entry.from), static_cast<u32>(entry.from >> 32),
                                   entry.from_key, entry.kind == kAdd ? entry.number : entry.bytes,
                                   entry.says_done ? 1u : 0u};
            for (int k = 0; k < 10; ++k) args.read[at * 10 + k] = words[k];
            const u64 other = args.told[2 * at + 1];
            args.heard[3 * at] = hear(heard, args.told[2 * at], static_cast<u32>(other >> 32),
                                      static_cast<u32>(other), pair.number, pair.slots);
            args.heard[3 * at + 1] = heard.known;
            args.heard[3 * at + 2] = heard.recorded;
        }
    }
}
