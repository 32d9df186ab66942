//! Both directions of a running link, and their scheduled changes.

use std::collections::VecDeque;

use marline_link::DuplexConfig;
use marline_time::{Duration, Instant, SeedTree};

use crate::command::{LinkCommand, Side};
use crate::lane::Lane;

#[derive(Debug)]
pub(crate) struct Lanes {
    pub(crate) up: Lane,
    pub(crate) down: Lane,
    schedule: VecDeque<(Instant, LinkCommand)>,
}

impl Lanes {
    /// Creates both directions. `schedule` has the commands by time after the start.
    pub(crate) fn new(
        link: DuplexConfig,
        seeds: &SeedTree,
        schedule: Vec<(Duration, LinkCommand)>,
        start: Instant,
    ) -> Self {
        let mut schedule: Vec<(Instant, LinkCommand)> =
            schedule.into_iter().map(|(after, command)| (start + after, command)).collect();
        schedule.sort_by_key(|(at, _)| *at);
        let up = Lane::new(link.up, &seeds.branch("up"), start);
        let mut down = Lane::new(link.down, &seeds.branch("down"), start);
        down.share_radio(&up);
        Lanes { up, down, schedule: schedule.into() }
    }

    /// Time of the link's next event.
    pub(crate) fn next_event(&self) -> Option<Instant> {
        let scheduled = self.schedule.front().map(|(at, _)| *at);
        [self.up.next_event(), self.down.next_event(), scheduled].into_iter().flatten().min()
    }

    /// Takes the next scheduled command that is due, with its time.
    pub(crate) fn take_scheduled(&mut self, now: Instant) -> Option<(Instant, LinkCommand)> {
        self.schedule.pop_front_if(|(at, _)| *at <= now)
    }

    pub(crate) fn set_config(&mut self, now: Instant, config: DuplexConfig) {
        self.up.set_config(now, config.up);
        self.down.set_config(now, config.down);
        self.down.share_radio(&self.up);
    }

    pub(crate) fn set_up(&mut self, now: Instant, side: Side, up: bool) {
        if side.has_up() {
            self.up.set_up(now, up);
        }
        if side.has_down() {
            self.down.set_up(now, up);
        }
    }
}
