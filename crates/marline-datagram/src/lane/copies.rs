//! Frames that are sent again on another path: as copies, or because they are lost or overdue.

use marline_policy::{DatagramContext, PathId};
use marline_time::Instant;

use super::pieces::FrameInPieces;
use super::sent_frames::{Copy, FrameToKeep};
use super::{Lane, Transmit};

/// Maximum number of copies that wait to be sent; beyond it, no more copies are made.
const MAX_COPIES: usize = 1_024;

impl Lane {
    /// Sends a sealed frame again on another path, with the number and bytes unchanged.
    pub(super) fn transmit_copy(&mut self, now: Instant, frame: &mut Vec<u8>) -> Option<Transmit> {
        while let Some(Copy { number, path: id, rescue }) = self.copies.pop_front() {
            let Some(kept) = self.kept.find(number) else { continue };
            let Some(path) = self.paths.iter_mut().find(|path| path.id() == id) else { continue };
            let bytes = kept.bytes.len();
            let useless = kept.deadline <= now || kept.was_sent_on(id);
            if useless || !path.has_room_for_copy(bytes) {
                continue;
            }
            kept.record_path(id);
            if bytes > path.frame_bytes().into() {
                let keeping = FrameToKeep { path: id, ..kept.frame_to_keep() };
                let mut cut = FrameInPieces::new(
                    number,
                    kept.bytes.clone(),
                    keeping,
                    path.frame_bytes().into(),
                );
                (cut.is_repeat, cut.rescue) = (true, rescue);
                self.fragmented.push(cut);
                return self.transmit_piece(now, frame);
            }
            frame.extend_from_slice(&kept.bytes);
            path.on_sent(number, bytes, false, now);
            self.stats.copied_frame_bytes += bytes as u64;
            self.stats.rescued_frame_bytes += if rescue { bytes as u64 } else { 0 };
            self.policy.on_sent(now, bytes as u64, true);
            return Some(Transmit { path: id, bytes });
        }
        None
    }

    pub(super) fn copy(&mut self, copy: Copy) {
        if self.copies.len() < MAX_COPIES {
            self.copies.push_back(copy);
        }
    }

    /// Handles a frame that is lost on a path or whose acknowledgment is overdue: it may be useful on another path.
    pub(super) fn rescue(&mut self, number: u64, on: PathId, now: Instant) {
        let Some(kept) = self.kept.find(number).filter(|kept| kept.deadline > now) else { return };
        let (flow, class, bytes, deadline) =
            (kept.flow, kept.class, kept.payload_bytes as usize, kept.deadline);
        self.update_path_views(0, Some(on), now);
        if self.views.is_empty() {
            return;
        }
        let view = self.flow_view(flow, class, bytes, deadline);
        let context = DatagramContext { now, paths: &self.views, repairs: self.peer_repairs };
        if let Some(path) = self.policy.rescue(&context, &view, on) {
            self.copy(Copy { number, path, rescue: true });
        }
    }
}
