//! The names of the device library that emitted text uses, by the header that declares each.

/// A function, class or constant of the device library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entity {
    /// The header of `templates/device/ep` that declares it, or brings what does.
    pub header: &'static str,
    /// Its name in the text.
    pub name: &'static str,
}

/// Headers that every text includes, behind the others.
pub const ALWAYS: [&str; 2] = ["rows", "sync"];

macro_rules! items {
    ($($header:ident { $($item:ident $(as $name:literal)?),* $(,)? })*) => {$($(
        #[doc = concat!("`", stringify!($item), "` of `", stringify!($header), ".cuh`.")]
        pub const $item: Entity = Entity {
            header: stringify!($header),
            name: items!(@name $item $($name)?),
        };
    )*)*};
    (@name $item:ident) => { concat!("ep::", stringify!($item)) };
    (@name $item:ident $name:literal) => { $name };
}

/// The library as C++ knows it: `ep::Mover` is `ep::Mover`.
#[expect(non_upper_case_globals, reason = "they are named as the library names them")]
pub mod ep {
    use super::Entity;

    items! {
        cast {
            block_least, block_peak, block_scale, ceil_ue8m0, from_logfmt10, greater_magnitude,
            lesser_magnitude, log_low, log_step, to_bf16, to_e4m3, to_float, to_logfmt10, with_upper,
        }
        compute {
            align, ask, ask_row, bit_xor, ceil, experts_of, get, greater, greatest, has, ids_of, least, lesser,
            local_expert, max, min, owner, prefix_sum, prefix_sum_and_total, ranks_of, row_of, rows_with, rows_with_each, set, store_flags, store_host,
            sum_of_lanes, with_bit,
        }
        count {
            add_count, clear_stripes, clear_tensor, CounterSmem, Counters, for_hits, leave_counted,
        }
        direct { direct_ready, DirectIn, DirectOut, StripePart, StripeParts }
        made { cast_from, PieceMover }
        mover { at_each, at_lane_of, at_leader, Mover, MoverSmem, RowPlaces, settle, tell }
        net_rings { NetRings }
        net_slot_rows { NetSlotRows }
        net_slots { NetSlotsIn, NetSlotsOut }
        one_launch {
            count_routes, of_block, once_offer, OnceIn, OnceMessage, OnceOut, ranks_where, route_of,
            RouteCounts, RouteSmem, values_of,
        }
        packed { copy_field, listed_before, PackedIn, PackedOut }
        part_stages { for_staged_parts, PartsAhead, PartSmem, PartStages }
        parts { part_values, Parts }
        places {
            PlaceCounters, require_room,
        }
        pull { pull_offer, pull_wait_released, PullConsumer }
        rings {
            kPartsOfPeer as "ep::Kept::kPartsOfPeer", kPeersOfPart as "ep::Kept::kPeersOfPart",
            RingsIn, RingsOut, WindowRings,
        }
        rows {
            all_peers, AskedSlice, Chosen, copy_row, fill, Flags, one_peer, other_peers, recorded, rows_ahead, rows_of, SlicedSpan, Span, span_of, span_part, stripe_span, StripeSlices,
        }
        slot_rows { slots_are_read, SlotParts, SlotRowsIn, SlotRowsOut, WindowSlots }
        slot_times { SlotTimes }
        slots { put, SlotChannel, SlotWords, word_of }
        sync {
            all_blocks, Call, clear, enter, Group, is_alive, is_between, kLanes, leave, meet, meet_block, Net, product,
            Shares, shares_of, Sequence, Team, Units,
        }
        words { await_word, has_come, raise_word }
        wide {
            cast_row, cast_slice, for_elements, found_rows, for_parts, for_row_elements, for_some_rows, for_wide, for_wide_parts, get_wide, kWide, row_elements, row_if, row_of_slice, row_units, row_values,
            set_wide, slice_begin, slice_of_row, slices_of, sum_some_rows, Wide, WideAt, WideParts,
        }
    }
}
