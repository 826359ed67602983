package wire

// Software is the version of this build, as Hello and the command line tell it.
const Software = "0.1.0"
