//! Methods by which a configuration is changed, named like its fields.

/// A method for each of these fields that gives the same configuration with another value.
macro_rules! setters {
    ($($name:ident: $type:ty),* $(,)?) => {$(
        #[doc = concat!("The same with this [`", stringify!($name), "`](Self#structfield.", stringify!($name), ").")]
        #[must_use]
        pub fn $name(mut self, $name: $type) -> Self {
            self.$name = $name;
            self
        }
    )*};
}

pub(crate) use setters;
