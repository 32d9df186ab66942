//! Positions in the streams of the connection that a viewer of the dashboard selected, from the core's traffic
//! events.
//!
//! Positions are collected only on request, and only for that connection. A message has at most [`MAX_ENTRIES`]
//! entries, and a contiguous piece is one entry. The viewer keeps the data for its picture.

use std::sync::Arc;
use std::time::Duration;

use marline::monitor::{MonitorEvent, MonitorKind, Purpose, Traffic};
use marline::policy::{DataRange, SubflowId};
use marline_dashboard::{CarriedBytes, Places, TransmissionKind};
use marline_io::Clock;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc};

use crate::control::Handle;
use crate::control::path_names::PathNames;

/// Interval between messages.
const MESSAGE_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum number of entries in a message. Further entries are only counted.
const MAX_ENTRIES: usize = 2_000;
/// Time within which contiguous entries are merged into one piece.
const MERGE_WINDOW_US: u64 = 10_000;

/// Starts to report the traffic of a connection's streams.
pub(super) fn start_reporting(
    handle: Arc<dyn Handle>,
    connection: u64,
) -> Option<mpsc::Receiver<Places>> {
    if !handle.connections().iter().any(|one| one.connection == connection) {
        return None;
    }
    let traffic = handle.traffic(connection)?;
    let (sender, receiver) = mpsc::channel(2);
    tokio::spawn(report_places(handle, connection, traffic, sender));
    Some(receiver)
}

/// Reports until the viewer or the connection is gone, or another connection is requested.
async fn report_places(
    handle: Arc<dyn Handle>,
    connection: u64,
    mut traffic: broadcast::Receiver<MonitorEvent>,
    viewer: mpsc::Sender<Places>,
) {
    let clock = Clock::start();
    let (mut gathered, mut names) = (PendingMessage::default(), PathNames::default());
    let mut named: Vec<u8> = Vec::new();
    let mut pause = tokio::time::interval(MESSAGE_INTERVAL);
    pause.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            event = traffic.recv() => match event {
                Ok(event) => gathered.add_event(&event),
                Err(RecvError::Lagged(missed)) => gathered.places.missed += missed,
                Err(RecvError::Closed) => return,
            },
            _ = pause.tick() => {
                let mut places = core::mem::take(&mut gathered.places);
                places.at_us = clock.now().as_micros();
                for slot in core::mem::take(&mut gathered.slots) {
                    if !named.contains(&slot) {
                        named.push(slot);
                        places.paths.push((slot, names.name(connection, SubflowId(slot), &*handle)));
                    }
                }
                // If the viewer is slow, the next message contains these entries. An empty message shows whether the
                // viewer still exists.
                match viewer.try_send(places) {
                    Ok(()) => {}
                    Err(mpsc::error::TrySendError::Full(lost)) => {
                        gathered.places.missed += lost.carried.len() as u64 + lost.missed;
                    }
                    Err(mpsc::error::TrySendError::Closed(_)) => return,
                }
            }
        }
    }
}

/// Contents of the next message.
#[derive(Default)]
struct PendingMessage {
    places: Places,
    slots: Vec<u8>,
}

impl PendingMessage {
    fn add_event(&mut self, event: &MonitorEvent) {
        let MonitorKind::Traffic { what, missed } = &event.kind else { return };
        self.places.missed += missed;
        let at_us = event.at.as_micros();
        match &**what {
            Traffic::Sent(sent) => {
                let manner = match sent.purpose {
                    Purpose::New | Purpose::Handshake => TransmissionKind::New,
                    Purpose::Copy => TransmissionKind::Copy,
                    Purpose::Reinjection(_) => TransmissionKind::Reinjection,
                    Purpose::Retransmission { .. } | Purpose::Probe => TransmissionKind::Repeat,
                    _ => return,
                };
                self.carried_ranges(at_us, sent.on, true, manner, sent.data);
            }
            Traffic::DataReceived { on, data, duplicate_bytes } => {
                let manner = if *duplicate_bytes > 0 {
                    TransmissionKind::Duplicate
                } else {
                    TransmissionKind::New
                };
                self.carried_ranges(at_us, *on, false, manner, *data);
            }
            Traffic::DataAcked { to, .. } if self.places.acked.len() < MAX_ENTRIES => {
                self.places.acked.push((at_us, to.0));
            }
            _ => {}
        }
    }

    fn carried_ranges(
        &mut self,
        at_us: u64,
        on: SubflowId,
        sent: bool,
        manner: TransmissionKind,
        data: DataRange,
    ) {
        if data.is_empty() {
            return;
        }
        if !self.slots.contains(&on.0) {
            self.slots.push(on.0);
        }
        let goes_on = |before: &&mut CarriedBytes| {
            let alike = (before.subflow, before.sent, before.manner) == (on.0, sent, manner);
            alike
                && before.dsn + before.bytes == data.start.0
                && at_us - before.at_us < MERGE_WINDOW_US
        };
        let list = &mut self.places.carried;
        if let Some(before) = list.last_mut().filter(goes_on) {
            before.bytes += data.len();
        } else if list.len() < MAX_ENTRIES {
            let (dsn, bytes) = (data.start.0, data.len());
            list.push(CarriedBytes { at_us, subflow: on.0, sent, manner, dsn, bytes });
        } else {
            self.places.missed += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use marline::monitor::ConnectionId;
    use marline::policy::Dsn;

    use super::*;

    fn came(at_us: u64, on: u8, start: u64, end: u64) -> MonitorEvent {
        let data = DataRange::new(Dsn(start), Dsn(end));
        let what = Traffic::DataReceived { on: SubflowId(on), data, duplicate_bytes: 0 };
        let at = marline::time::Instant::from_nanos(at_us * 1_000);
        let kind = MonitorKind::Traffic { what: Box::new(what), missed: 0 };
        MonitorEvent { at, connection: ConnectionId(1), kind }
    }

    #[test]
    fn contiguous_data_is_one_entry_and_excess_entries_are_counted() {
        let mut gathered = PendingMessage::default();
        for event in
            [came(0, 0, 0, 10), came(5, 0, 10, 20), came(9, 1, 20, 30), came(50_000, 1, 30, 40)]
        {
            gathered.add_event(&event);
        }
        let bytes: Vec<u64> = gathered.places.carried.iter().map(|carried| carried.bytes).collect();
        assert_eq!((bytes, gathered.slots.clone()), (vec![20, 10, 10], vec![0, 1]));
        (0..5_000).for_each(|n| gathered.add_event(&came(60_000, 0, n * 100, n * 100 + 10)));
        assert_eq!(gathered.places.carried.len(), MAX_ENTRIES);
        assert_eq!(gathered.places.missed, 5_000 + 3 - MAX_ENTRIES as u64);
    }
}
