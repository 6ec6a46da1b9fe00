//! Setters that differ only in what they set.

/// Setters that take the value itself, or after `in place` a reference to it, and give it back. Each is its docs,
/// its name and argument, and the assignment.
macro_rules! setters {
    (in place $($(#[$doc:meta])+ $name:ident($($value:ident: $type:ty),*) |$it:ident| $set:expr;)*) => {
        $(
            $(#[$doc])+
            pub fn $name(&mut self, $($value: $type),*) -> &mut Self {
                let $it = &mut *self;
                $set;
                self
            }
        )*
    };
    ($($(#[$doc:meta])+ $name:ident($($value:ident: $type:ty),*) |$it:ident| $set:expr;)*) => {
        $(
            $(#[$doc])+
            #[must_use]
            pub fn $name(mut self, $($value: $type),*) -> Self {
                let $it = &mut self;
                $set;
                self
            }
        )*
    };
}

pub(crate) use setters;
