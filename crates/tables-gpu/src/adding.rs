//! The kernels that add the totals of rows, on all devices that have some.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::future::{BoxFuture, try_join_all};

use crate::engine::{Launch, Ran};
use crate::figures::Figures;
use crate::giving_way::Need;
use crate::groups::{Groups, Place, TOO_MANY_ROWS, listed_max};
use crate::launches::{InMemory, Joins, last};
use crate::merge::{added_up, merging};
use crate::order::Order;
use crate::program::Total;
use crate::ranks::Selected;
use crate::reason::Reason;
use crate::result::Found;
use crate::selection::counts;
use crate::slice::{DISK_SLICES_MAX, SLICES_MAX};
use crate::spread::Spread;
use crate::work::{RESULTS_BYTES_MAX, Ready, Work};

type Result<T> = std::result::Result<T, Reason>;

/// Totals in memory of the engine, and the groups of them that are selected.
pub(crate) struct Counted {
    pub(crate) totals: InMemory,
    pub(crate) selected: Selected,
    pub(crate) groups: Groups,
}

impl Counted {
    /// Returns the bytes of the totals of groups; 0 of a list.
    pub(crate) fn group_bytes(&self) -> u64 {
        match self.groups.place {
            Place::Listed => 0,
            _ => self.totals.bytes,
        }
    }
}

impl Work {
    /// Runs kernels on a device.
    ///
    /// # Errors
    /// If the device cannot, or there is no room for what they return.
    pub(crate) async fn run(
        &self,
        device: usize,
        launch: Launch,
        figures: &mut Figures,
    ) -> Result<Ran> {
        let running = self.running(device, launch, figures)?;
        let ran = running.await?;
        figures.took += ran.took;
        figures.compiled += ran.compiled;
        Ok(ran)
    }

    /// Runs kernels on each device of a spread at the same time.
    ///
    /// # Errors
    /// As [`Work::run`].
    pub(crate) async fn run_all(
        &self,
        spread: &Spread,
        launches: Vec<Launch>,
        figures: &mut Figures,
    ) -> Result<Vec<Ran>> {
        let of_devices = spread.devices.iter().zip(launches);
        let running = of_devices.map(|(device, launch)| self.running(*device, launch, figures));
        let running = running.collect::<Result<Vec<_>>>()?;
        let ran = try_join_all(running).await?;
        let longest = |of: fn(&Ran) -> Duration| ran.iter().map(of).max().unwrap_or_default();
        figures.took += longest(|it| it.took);
        figures.compiled += longest(|it| it.compiled);
        Ok(ran)
    }

    /// Starts kernels on a device.
    fn running(
        &self,
        device: usize,
        launch: Launch,
        figures: &mut Figures,
    ) -> Result<BoxFuture<'static, Result<Ran>>> {
        self.columns.check_lost(&launch)?;
        figures.add(&launch, device);
        let bytes = launch.results_bytes;
        // The thread of the device copies them, and others wait for it.
        if bytes > RESULTS_BYTES_MAX {
            return Err(Reason::no_room(format!("{bytes} bytes of groups")));
        }
        // As bytes, as numbers, and as rows.
        figures.held.try_grow(4 * bytes).map_err(Reason::of)?;
        // Columns that were used longest ago give way to results.
        let room = self
            .columns
            .allocate(device, bytes.max(1) as u64, Need::Query(figures.used));
        drop(room?);
        Ok(self.columns.engines[device].run(launch))
    }

    /// Returns the totals of all these groups.
    pub(crate) async fn of_groups(
        &self,
        ready: &Ready,
        groups: &Groups,
        figures: &mut Figures,
    ) -> Result<Found> {
        if ready.needs_launches() {
            let with = (&*self.columns, ready.spread.devices[0], figures.used);
            let totals = InMemory::new(&ready.compiled, groups, with)?;
            let added = self.in_launches(ready, groups, &totals, |_| (), figures);
            let ran = added.await?;
            let bytes = totals.bytes as usize;
            if bytes > RESULTS_BYTES_MAX {
                return Err(Reason::no_room(format!("{bytes} bytes of groups")));
            }
            figures.held.try_grow(4 * bytes).map_err(Reason::of)?;
            let engine = self.columns.engine_of(&totals.memory);
            let words = engine.read(&totals.memory, totals.bytes).await?;
            return Ok(Found {
                ran: ran.with_results(&words),
                selected: None,
            });
        }
        let launches = ready.launches(groups, &[], self.options.waits)?;
        let ran = self.run_all(&ready.spread, launches, figures).await?;
        Ok(Found {
            ran: together(groups.layout(&ready.compiled.totals), ran)?,
            selected: None,
        })
    }

    /// Returns the groups in slices whose totals have room in memory of a device.
    pub(crate) fn slices(&self, ready: &Ready) -> VecDeque<Groups> {
        let compiled = &ready.compiled;
        let room = self.columns.room_of_tables(ready.spread.devices[0]);
        let most = (compiled.needed.slices(), ready.slices_max());
        let groups = &ready.groups;
        groups.sliced(&compiled.totals, room, most).into()
    }

    /// Adds the totals of the next slice in memory of the devices, and counts the groups that are selected. If a hash
    /// table has no room for them, divides the slice instead, and returns `None`. `leave` tells that the groups leave
    /// the device.
    ///
    /// # Errors
    /// If the slices are too many, or a device cannot add the totals.
    pub(crate) async fn counted(
        &self,
        ready: &Ready,
        (mut groups, leave): (Groups, bool),
        slices: &mut VecDeque<Groups>,
        figures: &mut Figures,
    ) -> Result<Option<Counted>> {
        let (compiled, waits) = (&*ready.compiled, self.options.waits);
        figures.group_slices += 1;
        'groups: loop {
            let devices = ready.spread.devices.iter();
            let of_devices = devices.map(|device| {
                let with = (&*self.columns, *device, figures.used);
                InMemory::new(compiled, &groups, with)
            });
            let mut others = of_devices.collect::<Result<Vec<_>>>()?;
            let mut totals = others.remove(0);
            let mut count = groups.count as u32;
            let mut search = compiled.selecting.search();
            let selecting = &compiled.selecting;
            let counting = |launch: &mut Launch| {
                // A list with a window is sorted before rows are selected.
                if compiled.order.is_none() {
                    selecting.count(search.ranks, launch, count, &totals);
                }
            };
            let mut ran = match ready.needs_launches() {
                true => {
                    let added = self.in_launches(ready, &groups, &totals, counting, figures);
                    added.await?
                }
                false => {
                    let of_devices = (&totals, others);
                    let added = self.added(ready, &groups, of_devices, counting, figures);
                    added.await?
                }
            };
            loop {
                if ran.is_full() && !groups.has_enough() {
                    match self.grown(ready, &mut groups, slices, figures)? {
                        true => continue 'groups,
                        false => return Ok(None),
                    }
                }
                if let Some(order) = &compiled.order
                    && totals.counter != 0
                {
                    let all = (leave && selecting.keeps_all()).then_some(&*compiled.totals);
                    (totals, count) = self.sorted((order, all), &totals, figures).await?;
                    groups.count = count as usize;
                } else if !ran.is_full()
                    && let Some(selected) = search.found(&counts(ran.results()))
                {
                    return Ok(Some(Counted {
                        totals,
                        selected,
                        groups,
                    }));
                }
                let mut launch = Launch {
                    memory: vec![totals.memory.clone()],
                    ..Launch::new(waits)
                };
                selecting.count(search.ranks, &mut launch, count, &totals);
                ran = self.run(totals.memory.device, launch, figures).await?;
            }
        }
    }

    /// Gives a hash table or a list that was full more slots. Returns whether it has more; if not, the slice is
    /// divided.
    ///
    /// # Errors
    /// If there is no room for more slots, and the slice cannot be divided.
    fn grown(
        &self,
        ready: &Ready,
        groups: &mut Groups,
        slices: &mut VecDeque<Groups>,
        figures: &mut Figures,
    ) -> Result<bool> {
        let compiled = &ready.compiled;
        let room = self.columns.room_of_tables(ready.spread.devices[0]);
        let grown = groups.grow(&compiled.totals, room);
        compiled.needed.put_slots(groups.count);
        let Err(reason) = grown else {
            return Ok(true);
        };
        let count = (figures.group_slices + slices.len()) as u64;
        let halves = groups.halves().filter(|_| count < ready.slices_max());
        figures.group_slices -= 1;
        for half in halves.ok_or(reason)? {
            slices.push_front(half);
        }
        Ok(false)
    }

    /// Sorts a list, and computes the window functions over it. Returns the sorted list and its number of rows. If all
    /// its rows leave the device, `all` are the totals of a row.
    ///
    /// # Errors
    /// If too many rows leave the device, there is no room, or the device fails.
    async fn sorted(
        &self,
        (order, all): (&Order, Option<&[Total]>),
        list: &InMemory,
        figures: &mut Figures,
    ) -> Result<(InMemory, u32)> {
        let engine = self.columns.engine_of(&list.memory);
        let counter = engine.read(&list.memory, 4).await?;
        let rows = counter.first().copied().unwrap_or(0);
        if all.is_some_and(|totals| u64::from(rows) > listed_max(rows.into(), totals)) {
            return Err(Reason::of_data(TOO_MANY_ROWS));
        }
        let mut launch = Launch::new(self.options.waits);
        let with = (&*self.columns, figures.used);
        let sorted = order.sort(list, rows.into(), with, &mut launch)?;
        self.run(list.memory.device, launch, figures).await?;
        Ok((sorted, rows))
    }

    /// Adds the totals in memory of each device, and then those of the others to those of the first. `also` adds
    /// kernels to the last launch. Returns what that launch returned, or the one after which a table was full.
    async fn added(
        &self,
        ready: &Ready,
        groups: &Groups,
        (first, others): (&InMemory, Vec<InMemory>),
        also: impl FnOnce(&mut Launch),
        figures: &mut Figures,
    ) -> Result<Ran> {
        let waits = self.options.waits;
        let of_devices: Vec<&InMemory> = [first].into_iter().chain(&others).collect();
        let mut launches = ready.launches(groups, &of_devices, waits)?;
        let device = first.memory.device;
        if others.is_empty() {
            let mut launch = launches.remove(0);
            also(&mut launch);
            return self.run(device, launch, figures).await;
        }
        let mut launch = merging(&ready.compiled.totals, groups, first, &others, waits);
        also(&mut launch);
        let later = launch.kernels.iter().map(|it| it.program.clone());
        launches[0].later = later.collect();
        let ran = self.run_all(&ready.spread, launches, figures).await?;
        match ran.into_iter().find(Ran::is_full) {
            Some(full) => Ok(full),
            None => self.run(device, launch, figures).await,
        }
    }

    /// Adds the totals in memory of a device in several launches, pass by pass or turn by turn. `also` adds kernels
    /// to the last one. Returns what that launch returned, or the one after which a table was full.
    async fn in_launches(
        &self,
        ready: &Ready,
        groups: &Groups,
        totals: &InMemory,
        also: impl FnMut(&mut Launch),
        figures: &mut Figures,
    ) -> Result<Ran> {
        if !ready.has_turns() {
            return self.in_passes(ready, groups, totals, also, figures).await;
        }
        let adds = Some((groups, totals));
        let mut ran = self.in_turns(ready, adds, also, figures).await?;
        ran.pop().ok_or_else(|| Reason::new("there is no turn"))
    }

    /// Adds the totals in memory of a device, in as many passes as the columns of the rows need. `also` adds kernels
    /// to the launch of the last one. Returns what that launch returned, or the one after which a table was full.
    async fn in_passes(
        &self,
        ready: &Ready,
        groups: &Groups,
        totals: &InMemory,
        mut also: impl FnMut(&mut Launch),
        figures: &mut Figures,
    ) -> Result<Ran> {
        let (compiled, source) = (&*ready.compiled, ready.compiled.kernel.of_source);
        let joins = &ready.joins[0];
        let of = (compiled, groups, joins, &*joins.turns);
        let device = totals.memory.device;
        let on = (&ready.spread, device);
        let rows = compiled.counting.rows(source, ready.rows().chunks()?);
        let passes = self.columns.passes(ready.rows(), &rows);
        let mut resident = ready.resident.clone();
        for (index, pass) in passes.iter().enumerate() {
            resident[source].files.clear();
            let of_pass = self.columns.pass(ready.rows(), pass, figures.used);
            let (of_pass, read) = of_pass.await?;
            resident[source] = of_pass;
            figures.from_disk.add(read);
            let mut launch = last(&resident, of, on, Some(totals), self.options.waits)?;
            if index > 0 {
                launch.zeroed = None;
            }
            let is_last = index + 1 == passes.len();
            if is_last {
                also(&mut launch);
            }
            let columns = figures.columns;
            let ran = self.run(device, launch, figures).await?;
            if index > 0 {
                // They are the same in each pass.
                figures.columns = columns;
            }
            if is_last || ran.is_full() {
                return Ok(ran);
            }
        }
        Err(Reason::new("there is no pass"))
    }
}

impl Ready {
    /// Returns the maximum number of slices of the groups. Rows are read once for each, and as often as tables of joins
    /// are made.
    fn slices_max(&self) -> u64 {
        let turns = self.joins.iter().map(Joins::turns).max().unwrap_or(1);
        let most = match self.rows().is_on_disk() {
            true => DISK_SLICES_MAX,
            false => SLICES_MAX,
        };
        (most / turns as u64).max(1)
    }

    /// Returns whether totals are added in several launches: the rows are read pass by pass, or each turn of the
    /// tables of joins is a launch.
    fn needs_launches(&self) -> bool {
        self.rows().is_on_disk() || self.has_turns()
    }

    /// Returns whether several devices add the totals of many groups faster than one that reads the rows of the others:
    /// whether the totals that the first reads of the others are fewer bytes than half of the rows.
    pub(crate) fn is_worth_merging(&self) -> bool {
        let keys = match self.groups.place {
            Place::Hashed => 8,
            _ => 0,
        };
        let totals = self.groups.bytes(&self.compiled.totals) + keys * self.groups.count;
        let columns = self.rows().files.iter().flat_map(|it| it.values());
        let rows: u64 = columns.map(|it| it.bytes.all()).sum();
        2 * totals as u64 <= rows
    }

    /// Returns the kernel that adds the totals, for each device of the spread: to these totals, or to its results.
    pub(crate) fn launches(
        &self,
        groups: &Groups,
        totals: &[&InMemory],
        waits: bool,
    ) -> Result<Vec<Launch>> {
        let devices = self.spread.devices.iter().zip(&self.joins).enumerate();
        let launches = devices.map(|(index, (device, joins))| {
            let of = (&*self.compiled, groups, joins, &*joins.turns);
            let totals = totals.get(index).copied();
            last(&self.resident, of, (&self.spread, *device), totals, waits)
        });
        launches.collect()
    }
}

/// Returns the totals of groups of all devices.
pub(crate) fn together(layout: &[Total], of_devices: Vec<Ran>) -> Result<Ran> {
    added_up(layout, of_devices).ok_or_else(|| Reason::new("no device ran"))
}
