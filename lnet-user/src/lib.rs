//! Linux drivers and runtime of LNet nodes.
