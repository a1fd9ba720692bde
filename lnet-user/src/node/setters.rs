//! Methods by which a configuration is changed, named like its fields.

/// A method for each of these fields, or those of a field, that gives the same configuration with another
/// value.
macro_rules! setters {
    ($($name:ident: $type:ty),* $(,)?) => {$(
        #[doc = concat!("The same with this [`", stringify!($name), "`](Self#structfield.", stringify!($name), ").")]
        #[must_use]
        pub fn $name(mut self, $name: $type) -> Self {
            self.$name = $name;
            self
        }
    )*};
    (of $outer:ident: $($name:ident: $type:ty),* $(,)?) => {$(
        #[doc = concat!("The same with this `", stringify!($name), "` in [`", stringify!($outer), "`](Self#structfield.", stringify!($outer), ").")]
        #[must_use]
        pub fn $name(mut self, $name: $type) -> Self {
            self.$outer.$name = $name;
            self
        }
    )*};
}

pub(crate) use setters;
