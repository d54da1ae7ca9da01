// What a text with mutations in it needs: the number of the one that holds in this run, and strong
// accesses whose qualifiers a mutation chooses; and what a text with marks needs, which note that a run
// has come to them.
#pragma once

#include "emu.h"

extern "C" {
/// The runtime sets it before a run, and nobody during one; all bits: note which ones a run comes to.
extern const unsigned emu_mutation;
bool emu_reach(unsigned number);
}

#define EMU_MUTATION(number) \
    __builtin_expect(emu_mutation == number || (emu_mutation == ~0u && emu_reach(number)), 0)

#define EMU_MARK(number) \
    static_cast<void>(__builtin_is_constant_evaluated() || emu_reach(number))

/// Each outcome has a number.
#define EMU_EITHER(number, condition) emu::either<number>(static_cast<bool>(condition))

namespace emu {

template <unsigned kNumber>
__device__ __forceinline__ constexpr bool either(bool holds) {
    EMU_MARK(holds ? kNumber : kNumber + 1);
    return holds;
}

}  // namespace emu

namespace ep {

template <unsigned kQualifiers, class T>
__device__ __forceinline__ T mutated_load(const T* at) {
    return static_cast<T>(emu_load(at, sizeof(T), kQualifiers));
}

template <unsigned kQualifiers, class T, class Value>
__device__ __forceinline__ void mutated_store(T* at, Value value) {
    emu_store(at, static_cast<T>(value), sizeof(T), kQualifiers);
}

template <unsigned kQualifiers, class T, class Value>
__device__ __forceinline__ T mutated_add(T* at, Value value) {
    const T more = static_cast<T>(value);
    return static_cast<T>(
        emu_atomic(EMU_ATOMIC_ADD, at, emu::bits(more), 0, sizeof(T), kQualifiers));
}

template <unsigned kQualifiers, class T, class Value>
__device__ __forceinline__ T mutated_compare_swap(T* at, T expected, Value desired) {
    return static_cast<T>(emu_atomic(EMU_ATOMIC_CAS, at, static_cast<T>(desired), expected,
                                     sizeof(T), kQualifiers));
}

}  // namespace ep
