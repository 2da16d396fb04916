//! Argument structs of kernels: defined once in Rust; their CUDA C++ definitions are generated.

use std::fmt;
use std::marker::PhantomData;

/// A type with the same layout in Rust and CUDA C++: numbers, arrays, pointers and the structs of
/// [`kernel_arguments!`](crate::kernel_arguments).
pub trait DeviceType: Sized {
    /// Returns the C++ declaration of a variable of this type, as in `unsigned int name`. `name` may end in array
    /// bounds.
    fn declare(name: &str) -> String;

    /// Appends the C++ definitions of the structs that the type contains or points to, each once, dependencies first.
    fn define(definitions: &mut Vec<String>);

    /// Writes the value's bytes to the start of `out` as laid out in device memory. Bytes of padding stay as they are.
    ///
    /// # Panics
    /// If `out` is shorter than the type.
    fn put(&self, out: &mut [u8]);

    /// Appends the value's bytes as laid out in device memory, with zeros for padding.
    fn append(&self, out: &mut Vec<u8>) {
        let first = out.len();
        out.resize(first + size_of::<Self>(), 0);
        self.put(&mut out[first..]);
    }

    /// Reads a value from the start of `bytes`, laid out as in device memory.
    ///
    /// # Panics
    /// If `bytes` is shorter than the type.
    fn read(bytes: &[u8]) -> Self;

    /// Returns `values` as bytes, in the layout of an array in device memory.
    fn bytes_of(values: &[Self]) -> Vec<u8> {
        let mut bytes = vec![0; size_of_val(values)];
        let places = bytes.chunks_exact_mut(size_of::<Self>().max(1));
        for (value, place) in values.iter().zip(places) {
            value.put(place);
        }
        bytes
    }
}

/// A struct that kernels take by value as their only parameter.
pub trait KernelArguments: DeviceType + Copy {
    /// Returns the C++ definitions of the struct and of all structs that it uses, with static assertions on sizes and
    /// offsets.
    ///
    /// Each definition has an include guard, so headers of several kernels that share structs can be combined.
    fn header() -> String {
        let mut definitions = Vec::new();
        Self::define(&mut definitions);
        definitions.concat()
    }
}

macro_rules! numbers {
    ($($rust:ty => $cpp:literal,)+) => { $(
        impl DeviceType for $rust {
            fn declare(name: &str) -> String {
                format!(concat!($cpp, " {}"), name)
            }

            fn define(_: &mut Vec<String>) {}

            fn put(&self, out: &mut [u8]) {
                out[..size_of::<$rust>()].copy_from_slice(&self.to_le_bytes());
            }

            fn read(bytes: &[u8]) -> Self {
                let (number, _) = bytes.split_first_chunk().expect("`bytes` is at least as long as the number");
                <$rust>::from_le_bytes(*number)
            }
        }
    )+ };
}

numbers! {
    u8 => "unsigned char",
    u16 => "unsigned short",
    u32 => "unsigned int",
    u64 => "unsigned long long",
    i8 => "signed char",
    i16 => "short",
    i32 => "int",
    i64 => "long long",
    f32 => "float",
    f64 => "double",
}

impl<T: DeviceType, const COUNT: usize> DeviceType for [T; COUNT] {
    fn declare(name: &str) -> String {
        T::declare(&format!("{name}[{COUNT}]"))
    }

    fn define(definitions: &mut Vec<String>) {
        T::define(definitions);
    }

    fn put(&self, out: &mut [u8]) {
        for (index, value) in self.iter().enumerate() {
            value.put(&mut out[index * size_of::<T>()..]);
        }
    }

    fn read(bytes: &[u8]) -> Self {
        std::array::from_fn(|index| T::read(&bytes[index * size_of::<T>()..]))
    }
}

macro_rules! pointers {
    ($($(#[$doc:meta])* $name:ident => $star:literal,)+) => { $(
        $(#[$doc])*
        #[repr(transparent)]
        pub struct $name<T> {
            address: u64,
            pointee: PhantomData<fn() -> T>,
        }

        impl<T> $name<T> {
            /// Returns a pointer to an address on the device.
            pub const fn new(address: u64) -> Self {
                $name { address, pointee: PhantomData }
            }

            /// Returns the address on the device.
            pub const fn address(self) -> u64 {
                self.address
            }
        }

        impl<T> Clone for $name<T> {
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<T> Copy for $name<T> {}

        /// Returns the null pointer.
        impl<T> Default for $name<T> {
            fn default() -> Self {
                $name::new(0)
            }
        }

        impl<T> fmt::Debug for $name<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.address)
            }
        }

        impl<T: DeviceType> DeviceType for $name<T> {
            fn declare(name: &str) -> String {
                T::declare(&format!(concat!($star, "{}"), name))
            }

            fn define(definitions: &mut Vec<String>) {
                T::define(definitions);
            }

            fn put(&self, out: &mut [u8]) {
                self.address.put(out);
            }

            fn read(bytes: &[u8]) -> Self {
                $name::new(u64::read(bytes))
            }
        }
    )+ };
}

pointers! {
    /// A pointer to device memory that a kernel reads: `T const*` in C++.
    DevicePointer => "const* ",
    /// A pointer to device memory that a kernel reads and writes: `T*` in C++.
    DevicePointerMut => "* ",
}

/// A struct field: name, C++ declaration, offset in bytes.
#[doc(hidden)]
pub type Field = (&'static str, String, usize);

/// Returns the C++ definition of a struct, for [`kernel_arguments!`](crate::kernel_arguments).
#[doc(hidden)]
pub fn struct_text(name: &str, bytes: usize, alignment: usize, fields: &[Field]) -> String {
    let declared: String = fields
        .iter()
        .map(|(_, declaration, _)| format!("    {declaration};\n"))
        .collect();
    let offsets: String = fields
        .iter()
        .map(|(field, _, offset)| {
            format!(
                "static_assert(__INTADDR__(&(({name}*)0)->{field}) == {offset}, \"{name}.{field}\");\n"
            )
        })
        .collect();
    // Some versions of NVRTC have no `__builtin_offsetof`, so the assertions use `__INTADDR__`, as NVRTC's own
    // `offsetof` does.
    format!(
        "#ifndef FOREBAY_STRUCT_{name}\n#define FOREBAY_STRUCT_{name}\nstruct {name} {{\n{declared}}};\n\
         static_assert(sizeof({name}) == {bytes} && alignof({name}) == {alignment}, \"{name}\");\n\
         {offsets}#endif\n"
    )
}

/// Defines argument structs of kernels, and structs that they contain or point to.
///
/// The structs are `#[repr(C)]`, `Debug`, `Clone` and `Copy` and implement
/// [`KernelArguments`](crate::cuda::KernelArguments). [`DeviceType::bytes_of`](crate::cuda::DeviceType::bytes_of)
/// returns an array of them as laid out in device memory. Fields are numbers, arrays,
/// [`DevicePointer`](crate::cuda::DevicePointer)s and structs defined by this macro; a struct may not point to itself.
/// The kernel takes `const __grid_constant__ Name arguments`.
///
/// # Examples
/// ```
/// use forebay_device::cuda::{DevicePointerMut, KernelArguments};
/// use forebay_device::kernel_arguments;
///
/// kernel_arguments! {
///     /// Arguments of `fill`.
///     pub struct FillArguments {
///         /// Output buffer.
///         pub out: DevicePointerMut<u32>,
///         /// Number of values to write.
///         pub count: u64,
///     }
/// }
///
/// assert!(FillArguments::header().contains("unsigned int * out;"));
/// ```
#[macro_export]
macro_rules! kernel_arguments {
    ($(
        $(#[$meta:meta])*
        $visibility:vis struct $name:ident {
            $( $(#[$field_meta:meta])* $field_visibility:vis $field:ident : $type:ty ),+ $(,)?
        }
    )+) => { $(
        $(#[$meta])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy)]
        $visibility struct $name {
            $( $(#[$field_meta])* $field_visibility $field: $type, )+
        }

        impl $crate::cuda::DeviceType for $name {
            fn declare(name: &str) -> String {
                format!("{} {name}", stringify!($name))
            }

            fn define(definitions: &mut Vec<String>) {
                $( <$type as $crate::cuda::DeviceType>::define(definitions); )+
                let fields = [ $( (
                    stringify!($field),
                    <$type as $crate::cuda::DeviceType>::declare(stringify!($field)),
                    ::std::mem::offset_of!($name, $field),
                ), )+ ];
                let (bytes, alignment) = (::std::mem::size_of::<$name>(), ::std::mem::align_of::<$name>());
                let text = $crate::cuda::struct_text(stringify!($name), bytes, alignment, &fields);
                if !definitions.contains(&text) {
                    definitions.push(text);
                }
            }

            fn put(&self, out: &mut [u8]) {
                let out = &mut out[..::std::mem::size_of::<$name>()];
                $(
                    $crate::cuda::DeviceType::put(&self.$field, &mut out[::std::mem::offset_of!($name, $field)..]);
                )+
            }

            fn read(bytes: &[u8]) -> Self {
                $name { $(
                    $field: <$type as $crate::cuda::DeviceType>::read(&bytes[::std::mem::offset_of!($name, $field)..]),
                )+ }
            }
        }

        impl $crate::cuda::KernelArguments for $name {}
    )+ };
}

#[cfg(test)]
mod tests {
    use super::*;

    kernel_arguments! {
        struct Entry {
            begin: u64,
            kind: u8,
        }

        struct Arguments {
            entries: DevicePointer<Entry>,
            one: Entry,
            found: DevicePointerMut<u32>,
            planes: [[u32; 8]; 4],
            pair: [DevicePointer<u8>; 2],
        }
    }

    #[test]
    fn structs_are_declared_as_cpp_does() {
        let header = Arguments::header();
        for line in [
            "Entry const* entries;",
            "Entry one;",
            "unsigned int * found;",
            "unsigned int planes[4][8];",
            "unsigned char const* pair[2];",
            "static_assert(sizeof(Entry) == 16 && alignof(Entry) == 8, \"Entry\");",
            "static_assert(__INTADDR__(&((Arguments*)0)->found) == 24, \"Arguments.found\");",
        ] {
            assert!(header.contains(line), "{line}\n{header}");
        }
        assert_eq!(header.matches("struct Entry {").count(), 1);
    }

    #[test]
    fn structs_are_written_and_read_as_they_are_laid_out() {
        let bytes = Entry::bytes_of(&[
            Entry { begin: 1, kind: 2 },
            Entry {
                begin: 1 << 40,
                kind: 3,
            },
        ]);
        let mut expected = [0; 32];
        (expected[0], expected[8], expected[21], expected[24]) = (1, 2, 1, 3);
        assert_eq!(bytes, expected);
        let second = Entry::read(&bytes[size_of::<Entry>()..]);
        assert_eq!((second.begin, second.kind), (1 << 40, 3));
        assert_eq!(<[u16; 2]>::read(&[1, 0, 2, 1, 9]), [1, 258]);
        let pointer = DevicePointerMut::<u32>::new(512);
        let pointers = DevicePointerMut::bytes_of(&[pointer]);
        assert_eq!(DevicePointerMut::<u32>::read(&pointers).address(), 512);
    }

    #[test]
    fn pointers_keep_their_address() {
        let arguments = Arguments {
            entries: DevicePointer::new(256),
            one: Entry { begin: 1, kind: 2 },
            found: DevicePointerMut::new(512),
            planes: [[0; 8]; 4],
            pair: [DevicePointer::new(0); 2],
        };
        assert_eq!(arguments.entries.address(), 256);
        assert_eq!(arguments.found.address(), 512);
        assert!(format!("{arguments:?}").contains("entries: 0x100"));
    }
}
