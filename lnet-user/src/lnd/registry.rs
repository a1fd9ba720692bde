//! Types that come of the list of LNDs: a choice among plans, open NIs and parts of them, a table of kinds,
//! and the LNDs of a shard as one LND.
//!
//! A macro and no table, because the choice is closed: each LND has types of its own, and a shard calls them
//! for each message.

/// The driver of a kind.
pub(super) type DriverOf<K> = <K as lnet_io::kind::LndKind>::Driver;

/// Defines all that depends on which LNDs there are. Each row has what carries the messages, the name of the
/// choice, the name of the field, the kind, its error, and how a node without NIs makes it.
macro_rules! lnds {
    ($($(#[$what:meta])* $Choice:ident $field:ident: $Kind:ty, $Error:ty = $new:expr;)*) => {
        /// The kinds of LNDs, by which a node opens and closes NIs.
        #[derive(Debug)]
        pub(crate) struct Kinds {
            $($(#[$what])* pub(crate) $field: $Kind,)*
        }

        /// An NI as it is to be opened: what was found out and checked before anything is built.
        pub(crate) enum NiPlan {
            $($(#[$what])* $Choice(<$Kind as LndKind>::Plan),)*
        }

        /// An open NI, as its LND has it.
        #[derive(Debug)]
        pub(crate) enum OpenLnd {
            $($(#[$what])* $Choice(<$Kind as LndKind>::Ni),)*
        }

        impl OpenLnd {
            /// The NI, as every LND tells of it.
            pub(crate) fn as_ni(&self) -> &dyn OpenNi {
                match self {
                    $(Self::$Choice(open) => open,)*
                }
            }
        }

        /// Why an NI is not opened; the message names the value and the way out.
        #[derive(Debug, Error)]
        #[non_exhaustive]
        pub enum LndError {
            $(
                $(#[$what])*
                #[error(transparent)]
                $Choice($Error),
            )*
            /// No LND serves the NI.
            #[error("{nid}: no LND serves it; nets of the types {} have one", nets_of_lnds().join(" and "), nid = .0)]
            None(Nid),
        }

        impl Kinds {
            /// The kinds of a node without NIs.
            pub(crate) fn new(config: &KindConfig<'_>) -> Self {
                Self { $($field: ($new)(config),)* }
            }

            /// Looks whether an NI can be opened, as its LND and its interface tell.
            pub(crate) fn plan(&self, request: &NiRequest<'_>) -> Result<NiPlan, LndError> {
                let row = request.options.lnd_on(request.nid.net(), request.interface);
                let name = row.map(|row| row.name);
                $(if name == Some(<$Kind>::ROW.name) {
                    return self.$field.plan(request).map(NiPlan::$Choice).map_err(LndError::$Choice);
                })*
                Err(LndError::None(request.nid))
            }

            /// Takes in which NIs the node has at first.
            pub(crate) fn expect(&mut self, host: &Host, plans: &[NiPlan]) {
                $(let of_kind = plans.iter().filter_map(|plan| match plan {
                    NiPlan::$Choice(plan) => Some(plan),
                    #[allow(unreachable_patterns)]
                    _ => None,
                });
                self.$field.expect(host, &of_kind.collect::<Vec<_>>());)*
            }

            /// Opens an NI; the parts of the shards.
            pub(crate) fn open(
                &mut self,
                host: &Host,
                request: &NiRequest<'_>,
                plan: NiPlan,
            ) -> Result<(OpenLnd, Vec<ShardPort>), LndError> {
                match plan {
                    $(NiPlan::$Choice(plan) => {
                        let opened = self.$field.open(host, request, plan);
                        let (open, parts) = opened.map_err(LndError::$Choice)?;
                        Ok((OpenLnd::$Choice(open), parts.into_iter().map(ShardPort::$Choice).collect()))
                    })*
                }
            }

            /// Follows what has changed about the interface of an open NI; what the shards are to take in.
            pub(crate) fn follow(&mut self, host: &Host, ni: NiId) -> Vec<ShardPort> {
                let mut parts = Vec::new();
                $(parts.extend(self.$field.follow(host, ni).into_iter().map(ShardPort::$Choice));)*
                parts
            }

            /// Closes an NI, with the parts of the shards that had it.
            pub(crate) fn close(&mut self, host: &Host, open: OpenLnd, parts: Vec<ShardPort>) {
                match open {
                    $(OpenLnd::$Choice(open) => {
                        let parts = parts.into_iter().filter_map(|part| match part {
                            ShardPort::$Choice(part) => Some(part),
                            #[allow(unreachable_patterns)]
                            _ => None,
                        });
                        self.$field.close(host, open, parts.collect());
                    })*
                }
            }

            /// Changes options of an open NI; those that its shards are to go by then, if there are any.
            pub(crate) fn change(&self, open: &mut OpenLnd, asked: &NiOptions) -> Option<NiOptions> {
                match open {
                    $(OpenLnd::$Choice(open) => self.$field.change(open, asked),)*
                }
            }
        }

        /// One shard's part of an NI. It is made when the node opens the NI, works while a worker has it, and
        /// goes back to the node, which closes the NI, whether a worker had it or not.
        pub(crate) enum ShardPort {
            $($(#[$what])* $Choice(Part<DriverOf<$Kind>>),)*
        }

        impl ShardPort {
            /// The NI.
            #[must_use]
            pub(crate) fn ni(&self) -> NiId {
                match self {
                    $(Self::$Choice(part) => part.port.ni(),)*
                }
            }

            /// Descriptors to be watched while the shard sleeps, from when it gets this port until it gives
            /// up the port that has them by then.
            pub(crate) fn watched(&self) -> Vec<BorrowedFd<'_>> {
                match self {
                    $(Self::$Choice(part) => part.port.watched(),)*
                }
            }
        }

        /// Which LND an NI has.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        enum Route {
            None,
            $($Choice,)*
        }

        /// The names that LNDs have for messages that arrive.
        #[derive(Clone, Debug)]
        struct Names {
            $($field: std::ops::Range<u32>,)*
        }

        impl Names {
            /// Names of a shard with these limits, and how many there are.
            fn of(limits: &Limits) -> (Self, u32) {
                let end = 0_u32;
                $(let $field = end..end.saturating_add(<DriverOf<$Kind>>::names_max(limits));
                let end = $field.end;)*
                (Self { $($field,)* }, end)
            }
        }

        /// A shard's LNDs: each comes with its first port and goes with its last.
        pub(crate) struct Lnds {
            $(pub(crate) $field: Option<Box<DriverOf<$Kind>>>,)*
            /// The LND of each NI, by the NI's number.
            routes: Vec<Route>,
            names: Names,
            /// Taps of captures while there is no LND that has frames.
            tap: Tap,
        }

        impl Lnds {
            /// The LNDs of a shard with these limits that has no NI yet.
            pub(crate) fn new(limits: &Limits) -> Self {
                let (names, _) = Names::of(limits);
                Self { $($field: None,)* routes: Vec::new(), names, tap: Tap::default() }
            }

            /// Takes part in an NI from now on.
            ///
            /// # Panics
            /// If its LND did not come with it, nor before; or came for a second time.
            pub(crate) fn add_port(&mut self, port: ShardPort) {
                let index = usize::from(port.ni().0);
                if index >= self.routes.len() {
                    self.routes.resize(index + 1, Route::None);
                }
                self.routes[index] = match port {
                    $(ShardPort::$Choice(part) => {
                        join(part, &mut self.$field, self.names.$field.start, &mut self.tap);
                        Route::$Choice
                    })*
                };
            }

            /// Gives up an NI that was closed; with the last one of a kind its LND as well.
            ///
            /// # Panics
            /// If it has not closed one of this number.
            pub(crate) fn remove_port(&mut self, ni: NiId) -> ShardPort {
                let port = match self.route(ni) {
                    Route::None => panic!("there is no NI {}", ni.0),
                    $(Route::$Choice => ShardPort::$Choice(detach(&mut self.$field, ni, &mut self.tap)),)*
                };
                self.routes[usize::from(ni.0)] = Route::None;
                port
            }

            /// Gives up what carries the frames of an NI, where its LND can do without for a while.
            pub(crate) fn suspend_port(&mut self, ni: NiId) -> Option<ShardPort> {
                match self.route(ni) {
                    Route::None => None,
                    $(Route::$Choice => {
                        let port = self.$field.as_mut()?.suspend_port(ni)?;
                        Some(ShardPort::$Choice(Part { lnd: None, port: Box::new(port) }))
                    })*
                }
            }

            /// Ends all that is under way by an NI, as far as it can go no other way; nothing begins any
            /// more.
            pub(crate) fn close_port(
                &mut self,
                now: Instant,
                ni: NiId,
                up: &mut impl Uplink,
                memory: &Memory,
            ) {
                match self.route(ni) {
                    Route::None => {}
                    $(Route::$Choice => {
                        if let Some(lnd) = &mut self.$field {
                            lnd.close_port(now, ni, up, memory);
                        }
                    })*
                }
            }

            /// Where frames are shown to captures.
            pub(crate) fn tap_mut(&mut self) -> &mut Tap {
                let tap = None;
                $(let tap = tap.or(self.$field.as_mut().and_then(|lnd| lnd.tap_mut()));)*
                tap.unwrap_or(&mut self.tap)
            }

            /// Tells what all of them have counted.
            ///
            /// # Errors
            /// Those of [`Driver::count`].
            pub(crate) fn count(
                &self,
                tell: &mut dyn FnMut(Counted, &'static str, u64),
            ) -> std::io::Result<()> {
                $(if let Some(lnd) = &self.$field {
                    lnd.count(tell)?;
                })*
                Ok(())
            }

            /// Steers by other policies from now on.
            pub(crate) fn set_policies(&mut self, policies: &[PolicyWord; PORTALS]) {
                $(if let Some(lnd) = &mut self.$field {
                    lnd.set_policies(policies);
                })*
            }

            /// How long a message may take from now on, of the LND of this NI: all its NIs have the same.
            pub(crate) fn set_timeout(&mut self, now: Instant, ni: NiId, timeout: Duration) {
                match self.route(ni) {
                    Route::None => {}
                    $(Route::$Choice => {
                        if let Some(lnd) = &mut self.$field {
                            lnd.set_timeout(now, timeout);
                        }
                    })*
                }
            }

            /// Has an NI go by other options from now on, as far as it can.
            pub(crate) fn change(&mut self, ni: NiId, options: &NiOptions) {
                match self.route(ni) {
                    Route::None => {}
                    $(Route::$Choice => {
                        if let Some(lnd) = &mut self.$field {
                            lnd.change(ni, options);
                        }
                    })*
                }
            }

            /// Ends what comes in the name of a NID from other addresses than its own.
            pub(crate) fn end_from_elsewhere(&mut self, now: Instant, nid: &Nid, up: &mut impl Uplink) {
                $(if let Some(lnd) = &mut self.$field {
                    lnd.end_from_elsewhere(now, nid, up);
                })*
            }

            /// Whether there is something to do that nothing watched would report.
            pub(crate) fn has_work(&mut self) -> bool {
                $(self.$field.as_mut().is_some_and(|lnd| lnd.has_work()))||*
            }

            /// Prepares for a sleep of who drives.
            pub(crate) fn prepare_sleep(&mut self) {
                $(if let Some(lnd) = &mut self.$field {
                    lnd.prepare_sleep();
                })*
            }

            /// Whether something has come from other nodes, as far as that costs no more than a look at
            /// memory, or at a socket or two.
            #[inline]
            pub(crate) fn has_arrivals(&mut self) -> bool {
                $(self.$field.as_mut().is_some_and(|lnd| lnd.has_arrivals()))||*
            }

            /// Whether something may have come that [`Lnds::has_arrivals`] does not see.
            #[inline]
            pub(crate) fn may_hide_arrivals(&self) -> bool {
                $(self.$field.as_ref().is_some_and(|lnd| lnd.may_hide_arrivals()))||*
            }

            /// Whether completions are waited for that wake no thread.
            pub(crate) fn awaits_completions(&self) -> bool {
                $(self.$field.as_ref().is_some_and(|lnd| lnd.awaits_completions()))||*
            }

            /// Whether one of them has what the kernel gives to the thread alone that drives.
            pub(crate) fn is_bound_to_driver(&self) -> bool {
                $(self.$field.as_ref().is_some_and(|lnd| lnd.is_bound_to_driver()))||*
            }
        }

        impl Lnd for Lnds {
            type Memory = Memory;

            #[inline]
            fn submit(&mut self, now: Instant, message: Lent<'_>, memory: &Memory) -> Result<(), Full<TxId>> {
                let ni = message.transmit.ni;
                match self.route(ni) {
                    Route::None => panic!("there is no NI {}", ni.0),
                    $(Route::$Choice => {
                        self.$field.as_mut().expect("an NI has an LND").submit(now, message, memory)
                    })*
                }
            }

            #[inline]
            fn flush(&mut self, now: Instant, memory: &Memory) {
                $(if let Some(lnd) = &mut self.$field {
                    lnd.flush(now, memory);
                })*
            }

            #[inline]
            fn drive(
                &mut self,
                now: Instant,
                budget: u32,
                up: &mut impl Uplink,
                memory: &mut Memory,
            ) -> Progress {
                let mut progress = Progress::default();
                $(if let Some(lnd) = &mut self.$field {
                    let Progress { received, completed } = lnd.drive(now, budget, up, memory);
                    progress.received += received;
                    progress.completed += completed;
                })*
                progress
            }

            fn resume(&mut self, now: Instant, rx: RxId, verdict: Verdict, up: &mut impl Uplink) {
                $(if self.names.$field.contains(&rx.0) {
                    if let Some(lnd) = &mut self.$field {
                        lnd.resume(now, rx, verdict, up);
                    }
                    return;
                })*
                unreachable!("{rx:?} is no name");
            }

            fn extend(&mut self, now: Instant, transmit: &Transmit) {
                match self.route(transmit.ni) {
                    Route::None => {}
                    $(Route::$Choice => {
                        if let Some(lnd) = &mut self.$field {
                            lnd.extend(now, transmit);
                        }
                    })*
                }
            }

            fn withdraw(&mut self, now: Instant, transmit: &Transmit, up: &mut impl Uplink) {
                match self.route(transmit.ni) {
                    Route::None => {}
                    $(Route::$Choice => {
                        if let Some(lnd) = &mut self.$field {
                            lnd.withdraw(now, transmit, up);
                        }
                    })*
                }
            }

            #[inline]
            fn poll_timeout(&self) -> Option<Instant> {
                time::earliest([$(self.$field.as_ref().and_then(|lnd| lnd.poll_timeout())),*])
            }
        }
    };
}

pub(super) use lnds;
