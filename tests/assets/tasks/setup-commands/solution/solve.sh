#!/bin/bash
id -un > user
