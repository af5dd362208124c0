// Nothing to call: the device is a plugin that ALSA loads by its `lib` entry. The header makes it a Swift package
// target.
#pragma once
