// libasound, as installed on the system.
#pragma once
#include <alsa/asoundlib.h>
